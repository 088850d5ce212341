"""All that clients can want of a cluster at once: the load under which nodes are killed, cut off and paused.

    every = EveryLoad(nodes, seed=14)
    every.start()
    …                               # faults
    violations = every.finish()     # ends all of it, waits until nothing is left to do, compares

A producer feeds a topic that a group reads and a transactional application copies, another one feeds a share group;
queues with dead letters and delayed messages go by HTTP, to whoever leads them.
"""

from __future__ import annotations

from typing import Final

from support.chaos.checks import Violation
from support.chaos.loads.copying import CopyLoad
from support.chaos.loads.delays import DelayLoad
from support.chaos.loads.group import GroupLoad
from support.chaos.loads.queue import QueueLoad
from support.chaos.loads.share import ShareLoad
from support.chaos.loads.work import Load
from support.chaos.nodes import Nodes
from support.chaos.steady_load import SteadyLoad

PARTITIONS: Final = 6
FEED: Final = "feed"
TASKS: Final = "tasks"
COPIES: Final = "copies"
LATER: Final = "later"
# Each led by another node; their dead letters lie where they do.
QUEUES: Final = {"jobs-one": (1, 2, 3), "jobs-two": (2, 3, 1)}
# Between two messages of a partition: the machine has others to serve.
PACE_SECONDS: Final = 0.1


class EveryLoad:
    def __init__(self, nodes: Nodes, *, seed: int) -> None:
        self.nodes = nodes
        for name in (FEED, TASKS, COPIES, LATER):
            nodes.create_topic(name, partitions=PARTITIONS)
        for name, replicas in QUEUES.items():
            for topic in (name, f"{name}-dead"):
                nodes.create_topic(topic, partitions=1, replicas=replicas)
        bootstrap, addresses = nodes.bootstrap, nodes.http_addresses
        self.feed = SteadyLoad(bootstrap, FEED, partitions=PARTITIONS, name=FEED, pace_seconds=PACE_SECONDS)
        self.tasks = SteadyLoad(bootstrap, TASKS, partitions=PARTITIONS, name=TASKS, pace_seconds=PACE_SECONDS)
        self.queues = [QueueLoad(addresses, bootstrap, name, seed=seed) for name in QUEUES]
        self.share = ShareLoad(bootstrap, self.tasks, group="packers", seed=seed)
        self.copy = CopyLoad(bootstrap, self.feed, COPIES)
        self.group = GroupLoad(bootstrap, self.feed, group="readers")
        self.delays = DelayLoad(addresses, bootstrap, LATER, partitions=PARTITIONS, seed=seed)
        self.loads: list[Load] = [*self.queues, self.share, self.copy, self.group, self.delays]

    def start(self) -> None:
        for queue in self.queues:
            queue.define()
        self.share.define(self.nodes.admin)
        self.feed.start()
        self.tasks.start()
        for load in self.loads:
            load.start()

    def finish(self) -> list[Violation]:
        self.feed.finish()
        self.tasks.finish()
        found = [violation for load in self.loads for violation in load.finish()]
        for feed in (self.feed, self.tasks):
            found += feed.check(self.nodes.bootstrap)
        return found

    def told(self) -> str:
        lines = [f"{feed.topic}: {len(feed.acked)} acknowledged" for feed in (self.feed, self.tasks)]
        lines += [f"{load.told()}; {len(load.refusals)} refusals" for load in self.loads]
        return "\n".join(f"  {line}" for line in lines)

    @property
    def refusals(self) -> list[tuple[float, str]]:
        """What clients were told that was no success, by its moment."""
        return sorted(each for load in self.loads for each in load.refusals)
