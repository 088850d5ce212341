"""ElectLeaders: the preferred replica leads again, or, if that is asked for, whoever is left.

Any node does it, by the metadata store's compare-and-set. Of all partitions (nothing is named) only those are told of
that had not the leader they should have, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.broker.topic.broker import Broker
from penstock.broker.topic.not_here import NotHere
from penstock.cluster.controller.elections import Place
from penstock.cluster.controller.requested import (
    Elected,
    NoPartition,
    NotNeeded,
    NotPossible,
    Outcome,
    RequestedElections,
    Wish,
)
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
    TopicPartitions,
)
from penstock.domain.security.access import CLUSTER, Operation
from penstock.gateways.admission import Admission
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.errors import ABSENCE_CODES
from penstock.gateways.kafka.store import STORE_FAILED_CODE, StoreFailed, ask_store

WISHES: Final = {0: Wish.PREFERRED, 1: Wish.UNCLEAN}
UNAVAILABLE_CODES: Final = {
    Wish.PREFERRED: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    Wish.UNCLEAN: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
}
# What Kafka's controller takes in one operation. Tools name what they want in batches of this size or less.
PARTITIONS_MAX: Final = 10_000


class _Told(msgspec.Struct, frozen=True):
    code: ErrorCode
    reason: str | None = None


class ElectionsHandler:
    def __init__(self, broker: Broker, elections: RequestedElections, admission: Admission) -> None:
        self._broker = broker
        self._elections = elections
        self._admission = admission

    async def elect_leaders(self, request: ElectLeadersRequest, context: RequestContext) -> ElectLeadersResponse:
        asked = request.topic_partitions
        refused = self._refusal(request, context)
        if refused is not None:
            # Also with each partition: the oldest version says it nowhere else.
            named = () if _count(asked) > PARTITIONS_MAX else asked or ()
            results = [_result(each.topic, [(index, refused) for index in each.partitions]) for each in named]
            return ElectLeadersResponse(error_code=refused.code, replica_election_results=results)
        wish = WISHES[request.election_type]
        if asked is None:
            results = [each for topic in self._all() if (each := await self._elect_away(topic, wish)) is not None]
        else:
            results = [_result(topic.topic, await self._elect(topic, wish)) for topic in asked]
        return ElectLeadersResponse(replica_election_results=results)

    def _refusal(self, request: ElectLeadersRequest, context: RequestContext) -> _Told | None:
        if not self._admission.may(context.caller, Operation.ALTER, CLUSTER):
            return _Told(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"{context.caller} may not alter the cluster")
        named = _count(request.topic_partitions)
        if named > PARTITIONS_MAX:
            reason = f"{named} partitions in one request, at most {PARTITIONS_MAX} are taken"
            return _Told(ErrorCode.INVALID_REQUEST, reason)
        if request.election_type not in WISHES:
            reason = f"election type {request.election_type}: there are preferred (0) and unclean (1)"
            return _Told(ErrorCode.INVALID_REQUEST, reason)
        return None

    def _all(self) -> list[TopicPartitions]:
        return [TopicPartitions(each.name, range(each.partition_count)) for each in self._broker.topics()]

    async def _elect_away(self, topic: TopicPartitions, wish: Wish) -> ReplicaElectionResult | None:
        told = await self._elect(topic, wish)
        away = [(index, each) for index, each in told if each.code != ErrorCode.ELECTION_NOT_NEEDED]
        return _result(topic.topic, away) if away else None

    async def _elect(self, topic: TopicPartitions, wish: Wish) -> list[tuple[int, _Told]]:
        told: dict[int, _Told] = {}
        places: dict[int, Place] = {}
        for index in topic.partitions:
            found = self._broker.find(topic.topic, index)
            if isinstance(found, NotHere) and found.is_unknown:
                told[index] = _Told(ABSENCE_CODES[found.why], found.detail)
            elif not isinstance(found, NotHere) and found.is_offline:
                reason = "its leader is out of service since a write to the disk failed"
                told[index] = _Told(UNAVAILABLE_CODES[wish], reason)
            else:
                served = self._broker.topic(topic.topic)
                assert served is not None
                places[index] = (served.topic_id, index)
        outcomes = await ask_store(self._elections.elect(list(places.values()), wish))
        if isinstance(outcomes, StoreFailed):
            failed = _Told(STORE_FAILED_CODE, outcomes.reason)
            told.update(dict.fromkeys(places, failed))
        else:
            told.update({index: _tell(each, wish) for index, each in zip(places, outcomes, strict=True)})
        return [(index, told[index]) for index in topic.partitions]


def _count(asked: Sequence[TopicPartitions] | None) -> int:
    return sum(len(topic.partitions) for topic in asked or ())


def _tell(outcome: Outcome, wish: Wish) -> _Told:
    match outcome:
        case Elected():
            return _Told(ErrorCode.NONE)
        case NotNeeded(leader):
            return _Told(ErrorCode.ELECTION_NOT_NEEDED, f"node {leader} leads the partition")
        case NotPossible(reason):
            return _Told(UNAVAILABLE_CODES[wish], reason)
        case NoPartition():
            return _Told(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition any more")


def _result(topic: str, told: Sequence[tuple[int, _Told]]) -> ReplicaElectionResult:
    return ReplicaElectionResult(topic, [PartitionResult(index, each.code, each.reason) for index, each in told])
