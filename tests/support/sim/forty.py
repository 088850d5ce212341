"""The forty bugs of the design (§8.4), and where each is planted into a real module and caught.

    cluster    `support.sim.cluster_bugs`: three whole nodes             walk     `support.replication.world_bugs`
    node       `support.sim.bugs`: one whole node                        log      the simulation of a replica's log
    transaction, storage: machine and disk by themselves

A number may be caught in several places. `NOT_SEEN` says why one alone cannot be, `OPEN` which are still to be planted.
"""

from __future__ import annotations

from typing import Final

CLUSTER: Final = "cluster"
NODE: Final = "node"
WALK: Final = "walk"
LOG: Final = "log"
TRANSACTION: Final = "transaction"

# By number: where, and under which name there.
CAUGHT: Final[dict[int, tuple[tuple[str, str], ...]]] = {
    1: ((CLUSTER, "a follower fetches before its sync"), (WALK, "a follower fetches before its sync")),
    2: (
        (CLUSTER, "a leader counts its end and not its durable end"),
        (WALK, "a leader counts its end and not its durable end"),
    ),
    3: ((WALK, "a pending addition is left out of the watermark"),),
    4: ((WALK, "a set counts before it is confirmed"),),
    5: ((WALK, "a failed proposal is taken for done"),),
    6: (
        (CLUSTER, "a change of unknown outcome is sent again, blindly"),
        (WALK, "a proposal that was not found in the store is taken for lost"),
    ),
    7: ((WALK, "a node joins with the life of an earlier one"),),
    8: ((WALK, "a follower cuts to its watermark"),),
    9: ((CLUSTER, "where an epoch begins is not noted by who takes over"),),
    10: ((WALK, "a follower takes one step of cutting only"),),
    11: ((CLUSTER, "a fetch that diverges counts"), (WALK, "a fetch that diverges counts")),
    12: (
        (CLUSTER, "the list of epochs is kept when no byte is cut"),
        (WALK, "the list of epochs is kept when no byte is cut"),
    ),
    13: ((WALK, "a late reply is used although the log has moved on"),),
    14: ((WALK, "an epoch is kept over a restart"),),
    15: ((CLUSTER, "a wiped directory keeps its seat"), (WALK, "a wiped directory keeps its seat")),
    16: ((CLUSTER, "the watermark moves below the minimum"), (WALK, "the watermark moves below the minimum")),
    17: ((CLUSTER, "the end of a log goes back for who asks"),),
    18: ((LOG, "the readable end stays below a start that has moved"),),
    19: ((WALK, "a draining replica is waited for again"),),
    20: (
        (NODE, "a delayed message is done with before it is durable"),
        (WALK, "a schedule says done before the message is committed"),
    ),
    21: ((NODE, "a dead letter leaves before its intent is durable"),),
    22: ((CLUSTER, "a batch with its hole is written before the row is committed"),),
    23: ((WALK, "companions are left out of in sync"),),
    24: ((WALK, "a machine is loaded before the barrier"),),
    28: ((TRANSACTION, "an old coordinator's marker is taken"),),
    30: ((TRANSACTION, "version 2 ends a transaction and leaves the epoch as it was"),),
    32: ((NODE, "a duplicate is confirmed before the first one is durable"),),
    34: ((LOG, "a gap is taken in a log without compaction"),),
    35: ((CLUSTER, "a follower decides by itself what is old"),),
    36: ((LOG, "producers of what is cut are kept"),),
    38: ((CLUSTER, "a watch resumes one revision late"),),
    39: ((CLUSTER, "a lease is shortened by the clock of the new leader"),),
    40: ((CLUSTER, "a follower does not check checksums"), (WALK, "a damaged replica stays electable")),
}

# One guard of several, each of which is enough: taken out alone it changes nothing that a story shows.
NOT_SEEN: Final[dict[int, str]] = {
    25: "a machine that has not resigned is found by nobody, and its log refuses what it decided in another epoch",
    26: "a log takes nothing while its node does not lead, and machines of an earlier lead have resigned",
    37: "every key that a controller writes is compared by its revision as well",
}

# Of what is not there yet, or has no load of its own.
OPEN: Final[dict[int, str]] = {
    27: "no load deletes a topic that dead letters are on their way to",
    29: "one story showed it, and does so no more since others were merged: it needs a story of its own",
    31: "partitions of one leader are committed together, as far as a request can tell",
    33: "no load compacts a topic and has a follower miss it",
}
