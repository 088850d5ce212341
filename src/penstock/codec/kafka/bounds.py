"""How much one request of each API may name, and how many bytes it may have: one table, with the reasons.

A request is refused while it is being read: as soon as an array's count is known (`compiler_decode`), or as soon as its
length and its API are (`gateways/kafka/connection`). What is within these bounds is served, in slices where it is long.
They are far above what clients send, so that nobody meets them who does not mean to.

Elements are those of all arrays of a request together, tagged fields included. An API that is not here cannot be read,
and a test says so.
"""

from __future__ import annotations

from typing import Final

import msgspec

_MIB: Final = 1024 * 1024


class RequestBound(msgspec.Struct, frozen=True):
    elements_max: int
    # None: as much as the door takes of any request.
    bytes_max: int | None
    reason: str


# Twice the partitions of the largest node that is tested, each of a topic of its own, by names of 249 letters. Who has
# more asks more than once.
_EVERY_PARTITION: Final = RequestBound(40_000, 16 * _MIB, "20,000 partitions of as many topics")
_EVERY_TOPIC: Final = RequestBound(40_000, 16 * _MIB, "40,000 topics by name")
_EVERY_GROUP: Final = RequestBound(40_000, 16 * _MIB, "40,000 groups or transactions by name")
# As much of everything as a person or a tool changes by one command; Kafka's controller stops at 10,000 records.
_MANY_CHANGES: Final = RequestBound(40_000, 8 * _MIB, "10,000 things with three settings each")
# All of them named, and each partition owned besides, in a topic of its own.
_ONE_MEMBER: Final = RequestBound(60_000, 16 * _MIB, "a subscription to 20,000 topics, and one partition of each owned")
_SMALL: Final = RequestBound(1_000, _MIB, "a handful of names")

BOUNDS: Final[dict[int, RequestBound]] = {
    # Produce, whose records are bytes and no elements
    0: RequestBound(40_000, None, "one batch for each of 20,000 partitions of as many topics"),
    1: _EVERY_PARTITION,  # Fetch
    2: _EVERY_PARTITION,  # ListOffsets
    3: _EVERY_TOPIC,  # Metadata
    8: _EVERY_PARTITION,  # OffsetCommit
    9: _EVERY_PARTITION,  # OffsetFetch
    10: _EVERY_GROUP,  # FindCoordinator
    # JoinGroup: `GroupConfig.member_bytes_max` is what is kept; some more is read, to say so
    11: RequestBound(1_000, 8 * _MIB, "a member's protocols, each with its subscription"),
    12: _SMALL,  # Heartbeat
    13: RequestBound(10_000, 4 * _MIB, "every member of the largest group"),  # LeaveGroup
    # SyncGroup: as above, `GroupConfig.group_bytes_max`
    14: RequestBound(10_000, 32 * _MIB, "an assignment for every member of the largest group"),
    15: _EVERY_GROUP,  # DescribeGroups
    16: _SMALL,  # ListGroups
    17: _SMALL,  # SaslHandshake
    18: _SMALL,  # ApiVersions
    19: _MANY_CHANGES,  # CreateTopics
    20: _EVERY_TOPIC,  # DeleteTopics
    21: _EVERY_PARTITION,  # DeleteRecords
    22: _SMALL,  # InitProducerId
    23: _EVERY_PARTITION,  # OffsetForLeaderEpoch
    # AddPartitionsToTxn: as many partitions as Kafka's controller creates at once. A transaction has all of them in one
    # record.
    24: RequestBound(21_000, 4 * _MIB, "10,000 partitions of as many topics, in up to 1,000 transactions"),
    25: _SMALL,  # AddOffsetsToTxn
    26: _SMALL,  # EndTxn
    27: _EVERY_PARTITION,  # WriteTxnMarkers
    28: _EVERY_PARTITION,  # TxnOffsetCommit
    29: _SMALL,  # DescribeAcls
    30: _MANY_CHANGES,  # CreateAcls
    31: _MANY_CHANGES,  # DeleteAcls
    32: _MANY_CHANGES,  # DescribeConfigs, whose reply has fifty settings for each
    33: _MANY_CHANGES,  # AlterConfigs
    34: _EVERY_PARTITION,  # AlterReplicaLogDirs
    35: _EVERY_PARTITION,  # DescribeLogDirs
    36: _SMALL,  # SaslAuthenticate
    37: _MANY_CHANGES,  # CreatePartitions
    38: _SMALL,  # CreateDelegationToken
    39: _SMALL,  # RenewDelegationToken
    40: _SMALL,  # ExpireDelegationToken
    41: _SMALL,  # DescribeDelegationToken
    42: _EVERY_GROUP,  # DeleteGroups
    43: _EVERY_PARTITION,  # ElectLeaders
    44: _MANY_CHANGES,  # IncrementalAlterConfigs
    45: _EVERY_PARTITION,  # AlterPartitionReassignments
    46: _EVERY_PARTITION,  # ListPartitionReassignments
    47: _EVERY_PARTITION,  # OffsetDelete
    48: _SMALL,  # DescribeClientQuotas
    49: _MANY_CHANGES,  # AlterClientQuotas
    50: _MANY_CHANGES,  # DescribeUserScramCredentials
    51: _MANY_CHANGES,  # AlterUserScramCredentials
    55: _EVERY_PARTITION,  # DescribeQuorum
    57: _SMALL,  # UpdateFeatures
    60: _SMALL,  # DescribeCluster
    61: _EVERY_PARTITION,  # DescribeProducers
    64: _SMALL,  # UnregisterBroker
    65: _EVERY_GROUP,  # DescribeTransactions
    66: RequestBound(10_000, _MIB, "10,000 producers to look for"),  # ListTransactions
    68: _ONE_MEMBER,  # ConsumerGroupHeartbeat
    69: _EVERY_GROUP,  # ConsumerGroupDescribe
    74: _SMALL,  # ListConfigResources
    75: _EVERY_TOPIC,  # DescribeTopicPartitions
    76: _ONE_MEMBER,  # ShareGroupHeartbeat
    77: _EVERY_GROUP,  # ShareGroupDescribe
    78: RequestBound(40_000, 16 * _MIB, "acknowledgements one by one of all that a member holds"),  # ShareFetch
    79: RequestBound(40_000, 16 * _MIB, "acknowledgements one by one of all that a member holds"),  # ShareAcknowledge
    80: _SMALL,  # AddRaftVoter
    81: _SMALL,  # RemoveRaftVoter
    83: _EVERY_PARTITION,  # InitializeShareGroupState
    84: _EVERY_PARTITION,  # ReadShareGroupState
    85: _EVERY_PARTITION,  # WriteShareGroupState
    86: _EVERY_PARTITION,  # DeleteShareGroupState
    87: _EVERY_PARTITION,  # ReadShareGroupStateSummary
    88: RequestBound(20_000, 8 * _MIB, "a topology with its topics, and the member's tasks"),  # StreamsGroupHeartbeat
    89: _EVERY_GROUP,  # StreamsGroupDescribe
    90: _EVERY_PARTITION,  # DescribeShareGroupOffsets
    91: _EVERY_PARTITION,  # AlterShareGroupOffsets
    92: _EVERY_TOPIC,  # DeleteShareGroupOffsets
    # Between nodes of a cluster
    20_000: _SMALL,  # Hello
    20_001: _EVERY_PARTITION,  # Barrier
    20_002: _SMALL,  # DescribeReplica, whose reply is bounded by its handler
    # Forward, whose body is bytes and no elements
    20_003: RequestBound(1_000, None, "what a client sent to another door, which has bounds of its own"),
}
