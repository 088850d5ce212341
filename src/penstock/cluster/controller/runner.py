"""The controller of a cluster: one node at a time decides who leads, who is admitted, and what is swept away.

    something has changed, or a second has passed
        ──► the seat is free: take it, the lowest living id at once, any other a second later
        ──► the seat is ours: look at what is due, decide by the rules, write at most 60 partitions at a time
            ──► nothing is left to decide: admit who asks
            ──► nobody asks: give internal topics the replicas that they lack, let the longest log lead where all
                memories were lost, and every five minutes preferred replicas

Every node has one of these; the seat says whose word counts.

Rules:
- It reads from the catalogs of its node, asks the pure rules, and writes. It remembers nothing that the store does not
  have: a controller that takes over knows as much as the one before.
- Every transaction compares the seat, and every key that was decided by. A failed one, or one of unknown outcome, is
  never repeated: a tick is written behind it, and when that has come back everything before it is known (`_catch_up`).
- A node is admitted when no partition counts on it more than it deserves: after a look at all of them that found
  nothing to change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.base.long_work import LongWork
from penstock.base.tasks import TaskSupervisor
from penstock.cluster.catalog.nodes import LivingNode, NodeCatalog, NodesChanged
from penstock.cluster.catalog.order import Part
from penstock.cluster.catalog.partition_image import PartitionChanged
from penstock.cluster.catalog.topic_image import Change, PartitionsGrown, TopicAdded, TopicConfigChanged, TopicRemoved
from penstock.cluster.catalog.topics import TopicCatalog
from penstock.cluster.controller.admissions import Admissions
from penstock.cluster.controller.elections import Elections, Place, StateChange
from penstock.cluster.controller.growth import Growth
from penstock.cluster.controller.longest import AskEnd, LongestLogs
from penstock.cluster.controller.seat import Seat, SeatLostError
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import StoreError, StoreFullError
from penstock.cluster.store.values import encode
from penstock.domain.replication.election import CHANGES_A_STEP_MAX, prefer
from penstock.domain.replication.membership import Trust, Verdict
from penstock.domain.replication.state import PartitionState

TICK_MS: Final = 1000
# How often it is looked whether leaders are where they should be.
PREFER_MS: Final = 5 * 60_000
# Each round changes all that is due and looks again. Rules that agree with themselves need two or three.
_ROUNDS_MAX: Final = 10

log = get_logger("controller")

T = TypeVar("T")


class Controller:
    def __init__(
        self,
        keys: KeySpace,
        nodes: NodeCatalog,
        topics: TopicCatalog,
        seat: Seat,
        *,
        node_id: int,
        cluster_id: str,
        clock: Clock,
    ) -> None:
        self._keys = keys
        self._nodes = nodes
        self._topics = topics
        self._seat = seat
        self._node_id = node_id
        self._clock = clock
        self._elections = Elections(topics, nodes)
        self._growth = Growth(topics, nodes)
        self._longest = LongestLogs(nodes)
        self._is_asking = False
        self._prefer_at_ms = clock.monotonic_ms() + PREFER_MS
        self._admissions = Admissions(nodes, keys, cluster_id=cluster_id)
        self._work = LongWork(clock.monotonic_seconds)
        self._tasks = TaskSupervisor(log)
        # Something is to be looked at; for those who wait for something to come true, each time another.
        self._news = asyncio.Event()
        self._heard = asyncio.Event()
        self._is_sweep_due = True
        self._changes_at_once = CHANGES_A_STEP_MAX
        self._tick_at_ms = 0
        nodes.on_change(self._on_nodes, Part.CONTROLLER)
        topics.on_change(self._on_topic, Part.CONTROLLER)
        topics.on_partition_change(self._on_partition, Part.CONTROLLER)

    def ask_ends_by(self, ask_end: AskEnd) -> None:
        """How it learns how far the logs of others reach."""
        self._longest.ask_end = ask_end

    # Life

    async def start(self) -> bool:
        """Both catalogs have been started. A node that is alone has decided everything when this returns; False: the
        store had no room for it, and it is tried again until it has."""
        has_room = True
        try:
            await self.turn()
        except StoreFullError as error:
            has_room = False
            log.warning("controller cannot work, it tries again", error=str(error))
        self._tasks.start("controller", self._run())
        return has_room

    async def stop(self) -> None:
        await self._tasks.stop()

    async def wait_until(self, is_so: Callable[[], bool], *, wait_s: float) -> bool:
        """Whether something has come true in time that follows from the catalogs."""
        try:
            async with asyncio.timeout(wait_s):
                while not is_so():
                    await self._heard.wait()
        except TimeoutError:
            return False
        return True

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._tick_in_ms() / 1000):
                    await self._news.wait()
            except TimeoutError:
                pass  # the second is over
            await self.turn()

    # What has changed. Whoever takes the seat looks at everything: until then nothing need be noted.

    def _on_nodes(self, _change: NodesChanged) -> None:
        # Also when the seat is another's now: whoever has just taken it hears of that here.
        self._elections.look_at_all()
        self._growth.look()
        self._wake()

    def _on_topic(self, change: Change) -> None:
        match change:
            case TopicAdded(topic):
                is_due = self._seat.is_held and (self._elections.look_at_topic(topic) or topic.is_internal)
                self._growth.look_at(topic.topic_id)
            case PartitionsGrown(_, topic) | TopicConfigChanged(_, topic):
                is_due = self._seat.is_held
                self._elections.look_at((topic.topic_id, index) for index in range(topic.partition_count))
            case TopicRemoved():
                is_due = self._is_sweep_due = True
            case _:
                return
        if is_due:
            self._wake()

    def _on_partition(self, change: PartitionChanged) -> None:
        if self._seat.is_held:
            self._elections.look_at([(change.topic_id, change.index)])
            self._growth.look_at(change.topic_id)
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._heard.set()
        self._heard = asyncio.Event()

    # Deciding

    async def turn(self) -> None:
        """Takes the seat if it is free, and does whatever is due in it. What fails is done by the next turn."""
        self._news.clear()
        is_second_over = self._tick_in_ms() == 0
        try:
            if self._seat.is_free and (is_second_over or self._seat.is_next):
                await self._take_seat()
            if self._seat.is_held:
                await self._govern(is_tick_due=is_second_over)
        except SeatLostError:
            log.info("another node is the controller")
        except StoreError as error:
            log.warning("controller cannot work, it tries again", error=str(error))
        if is_second_over:
            self._tick_at_ms = self._clock.monotonic_ms() + TICK_MS

    def _tick_in_ms(self) -> int:
        return max(0, self._tick_at_ms - self._clock.monotonic_ms())

    async def _take_seat(self) -> None:
        revision = await self._seat.take()
        if revision is not None:
            log.info("this node is the controller", node=self._node_id, revision=revision)
            await self._topics.wait_for(revision)

    async def _govern(self, *, is_tick_due: bool) -> None:
        # Alone, nobody would hear it.
        if is_tick_due and len(self._nodes.living()) > 1:
            await self._tick()
        for _ in range(_ROUNDS_MAX):
            asking = {node.record.node_id: node for node in self._admissions.asking()}
            verdicts = {node_id: self._admissions.verdict(node) for node_id, node in asking.items()}
            if asking:
                self._elections.look_at_all()
            doubts = {node_id: each.trust for node_id, each in verdicts.items() if each.trust is not Trust.FULL}
            changes = await self._work.run(self._elections.plan(doubts))
            if changes:
                await self._write(changes)
            elif asking:
                await self._admit(asking, verdicts)
            elif not (await self._find_longest() or await self._grow() or await self._prefer()):
                break
        await self._sweep()

    async def _find_longest(self) -> bool:
        """Whether anything has changed by it. Who is asked may take long to answer: nobody waits for that here."""
        lost = self._elections.lost
        if not lost:
            return False
        decided = [(place, stated, self._longest.decide(place, stated.state)) for place, stated in lost.items()]
        changes = [StateChange(place, stated, after) for place, stated, after in decided if after is not None]
        if changes:
            await self._write(changes)
            return True
        if not self._is_asking:
            self._is_asking = True
            states = [(place, stated.state) for place, stated in lost.items()]
            self._tasks.start("ends of logs", self._ask_ends(states))
        return False

    async def _ask_ends(self, lost: Sequence[tuple[Place, PartitionState]]) -> None:
        try:
            if await self._longest.ask(lost):
                self._wake()
        finally:
            self._is_asking = False

    async def _prefer(self) -> bool:
        """Whether any of the replicas that should lead do so now."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._prefer_at_ms:
            return False
        shared = await self._work.run(self._elections.shared())
        wanted = prefer({place: stated.state for place, stated in shared.items()}, self._nodes.view())
        self._prefer_at_ms = now_ms + (TICK_MS if len(wanted) == CHANGES_A_STEP_MAX else PREFER_MS)
        if wanted:
            await self._write([StateChange(place, shared[place], after) for place, after in wanted])
        return bool(wanted)

    async def _grow(self) -> bool:
        """Whether anything has changed by it."""
        if not self._growth.is_due:
            return False
        changes = self._growth.plan()
        if changes:
            await self._write(changes)
            return True
        for name, replication in self._growth.grown().items():
            await self._topics.raise_replication(name, replication)
            log.info("topic has more replicas", topic=name, replication=replication)
        return False

    async def _write(self, changes: Sequence[StateChange]) -> None:
        revision = 0
        left = list(changes)
        while left:
            step, left = left[: self._changes_at_once], left[self._changes_at_once :]
            puts = {self._keys.partition(*change.place): encode(change.after) for change in step}
            try:
                result = await self._seat.txn([change.compare(self._keys) for change in step], puts)
            except StoreError as error:
                log.warning("election of unknown outcome", partitions=len(step), error=str(error))
                self._look_again(step + left)
                await self._catch_up()
                return
            if not result.ok:
                # Somebody in there was changed by its leader: fewer at a time meet fewer of them.
                self._changes_at_once = max(1, self._changes_at_once // 2)
                self._look_again(step + left)
                await self._catch_up()
                return
            self._changes_at_once = CHANGES_A_STEP_MAX
            revision = result.revision
            urgent_count = sum(change.is_urgent for change in step)
            log.info("partitions changed", partitions=len(step), elections=urgent_count, revision=revision)
        await self._topics.wait_for(revision)

    def _look_again(self, changes: Sequence[StateChange]) -> None:
        self._elections.look_at(change.place for change in changes)
        self._growth.look()

    async def _admit(self, asking: Mapping[int, LivingNode], verdicts: Mapping[int, Verdict]) -> None:
        for node_id, node in asking.items():
            record = self._admissions.record(node)
            result = await self._seat.txn(self._admissions.compares(node), {self._keys.member(node_id): encode(record)})
            if not result.ok:
                # It has died, or lives another life by now.
                await self._catch_up()
                return
            verdict = verdicts[node_id]
            tell = log.info if verdict.reason is None else log.warning
            tell("node admitted", node=node_id, epoch=node.epoch, trust=verdict.trust.value, reason=verdict.reason)
            await self._topics.wait_for(result.revision)

    async def _sweep(self) -> None:
        """Keys of topics that are gone. A topic's id is never used again."""
        if not self._is_sweep_due:
            return
        for keys in _in_portions(self._topics.orphaned_keys(), CHANGES_A_STEP_MAX):
            result = await self._seat.txn((), deletes=keys)
            if not result.ok:
                raise SeatLostError
        self._is_sweep_due = False

    async def _tick(self) -> int:
        """The revision of it. By ticks others measure how long they have not heard from the store."""
        result = await self._seat.txn((), {self._keys.tick: encode(self._clock.now_ms())})
        if not result.ok:
            raise SeatLostError
        return result.revision

    async def _catch_up(self) -> None:
        """When this returns, the catalogs have everything that was written before."""
        await self._topics.wait_for(await self._tick())


def _in_portions(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
