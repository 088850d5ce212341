"""Dead letters and redrives between three nodes: exactly once, whoever leads the source or the target by then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.base.clock import SystemClock
from penstock.broker.queue.landing import land_for_another
from penstock.broker.replication.server import NodeReplicas
from penstock.cluster.producer_ids import ProducerIds
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.sqlite import SqliteStore
from penstock.domain.queue.definition import QueueName
from penstock.domain.queue.redrive import REDRIVE_GROUP, RedriveState, RedriveTask
from penstock.domain.replication.exchange import Forward, ForwardKind, LogName, ReplicaProblem
from support.replication.moving_trio import DEAD, QUEUE, MovingNode, MovingTrio
from support.replication.trio import PATIENCE_SECONDS, TOPIC
from support.storage.gated_disk import GatedDisk

# Enough for whatever is ready to happen.
TURNS = 50


@pytest.fixture
async def trio(tmp_path: Path) -> AsyncIterator[MovingTrio]:
    metadata = await SqliteStore.open(
        str(tmp_path / "metadata.sqlite"), clock=SystemClock(), is_secret=KeySpace().is_secret
    )
    made = MovingTrio(metadata)
    await made.start()
    yield made
    await made.stop()
    await metadata.close()


def is_moving(trio: MovingTrio, leader: int) -> bool:
    """The source has told somebody of a move that it does not know the end of."""
    shells = [shell for shell in trio.nodes[leader].queues.loaded_shells() if shell.partition.topic == TOPIC]
    queues = [queue for shell in shells if (queue := shell.queue(QUEUE.group)) is not None]
    return any(queue.pending_move() is not None for queue in queues)


def is_idle(trio: MovingTrio, leader: int) -> bool:
    """It has been loaded, and has nothing to move."""
    shells = [shell for shell in trio.nodes[leader].queues.loaded_shells() if shell.partition.topic == TOPIC]
    queues = [queue for shell in shells if shell.is_loaded and (queue := shell.queue(QUEUE.group)) is not None]
    return bool(queues) and not any(queue.pending_move() or queue.dying(1) for queue in queues)


async def test_dead_letters_go_to_a_topic_that_another_node_leads(trio: MovingTrio) -> None:
    await trio.create_queue()
    await trio.reject([b"a", b"b"])
    await trio.reject([b"c"])
    await trio.until_dead(b"a", b"b", b"c", on=2)
    await trio.until(lambda: is_idle(trio, 1))
    assert {node for node, _ in trio.nodes[1].line.sent} == {2}
    await trio.until(lambda: trio.nodes[1].queues.buried_count(QUEUE) == 3)


async def test_letter_whose_answer_is_lost_is_there_once(trio: MovingTrio) -> None:
    await trio.create_queue()
    trio.wire.cuts.add((2, 1))
    # Followers of node 2 on node 1 hear nothing either: the letters are committed when it has left the set.
    await trio.reject([b"a"])
    await trio.until_dead(b"a", on=2)
    assert is_moving(trio, 1)
    await trio.until(lambda: trio.nodes[1].line.lost_answers > 0)
    trio.wire.mend()
    await trio.until(lambda: is_idle(trio, 1))
    assert len(trio.nodes[1].line.sent) >= 2
    await trio.until_dead(b"a", on=2)


async def test_who_takes_the_source_over_finishes_the_move_and_nothing_comes_twice(trio: MovingTrio) -> None:
    await trio.create_queue()
    trio.wire.cuts.add((2, 1))
    await trio.reject([b"a", b"b"])
    await trio.until_dead(b"a", b"b", on=2)
    assert is_moving(trio, 1)
    # Node 2 cannot ask node 1 either, and has left the set by then.
    await trio.until(lambda: trio.stated(2).state.in_sync == (1, 3))
    await trio.elect(3, in_sync=(1, 3), seen_by=2)
    trio.wire.mend()
    await trio.until(lambda: is_idle(trio, 3))
    await trio.until_dead(b"a", b"b", on=2)
    await trio.reject([b"c"], leader=3)
    await trio.until_dead(b"a", b"b", b"c", on=2)


async def test_who_takes_the_target_over_knows_what_it_has_got(trio: MovingTrio) -> None:
    await trio.create_queue()
    trio.wire.cuts.add((2, 1))
    await trio.reject([b"a"])
    await trio.until_dead(b"a", on=2)
    await trio.until(lambda: trio.stated(3, DEAD).state.in_sync == (2, 3))
    await trio.elect(3, in_sync=(2, 3), topic=DEAD)
    trio.wire.mend()
    await trio.until(lambda: is_idle(trio, 1))
    assert {node for node, _ in trio.nodes[1].line.sent} == {2, 3}
    await trio.until_dead(b"a", on=3)


async def test_letters_wait_for_a_leader_and_say_for_which(trio: MovingTrio) -> None:
    await trio.create_queue()
    trio.wire.cuts.add((1, 2))
    await trio.reject([b"a"])
    queues = trio.nodes[1].queues
    shell = next(shell for shell in queues.loaded_shells() if shell.partition.topic == TOPIC)
    await trio.until(lambda: queues.move_waits_for(shell, QUEUE.group) != "")
    waits_for = queues.move_waits_for(shell, QUEUE.group)
    assert waits_for == "orders-dlq-0 is led by node 2, in epoch 0, which gave no answer: node 2 is not there"
    trio.wire.mend()
    await trio.until_dead(b"a", on=2)
    await trio.until(lambda: queues.move_waits_for(shell, QUEUE.group) == "")


class ClosingIds(ProducerIds):
    """Whoever is about to intend a move takes an id first: from then on one of the source's disks is shut."""

    disk: GatedDisk

    async def take(self) -> int:
        taken = await super().take()
        self.disk.close_gate()
        return taken


class ClosingNode(MovingNode):
    def make_producer_ids(self) -> ProducerIds:
        ids = ClosingIds(self._metadata, self._keys)
        ids.disk = GatedDisk()
        self.ids = ids
        return ids


async def test_nothing_is_sent_before_its_intent_is_committed(tmp_path: Path) -> None:
    metadata = await SqliteStore.open(str(tmp_path / "m"), clock=SystemClock(), is_secret=KeySpace().is_secret)
    trio = MovingTrio(metadata)
    trio.node_type = ClosingNode
    await trio.start()
    node, disk = trio.nodes[1], trio.files[3]
    assert isinstance(node, ClosingNode)
    assert isinstance(disk, GatedDisk)
    # Not on node 3: the target can commit whatever comes.
    await trio.create_queue((2, 1))
    node.ids.disk = disk
    await trio.reject([b"a"])
    await trio.until(lambda: is_moving(trio, 1))
    for _ in range(TURNS):
        await asyncio.sleep(0)
    assert node.line.sent == [], "of an intent that only some of its replicas have"
    disk.open_gate()
    await trio.until_dead(b"a", on=2)
    await trio.stop()
    await metadata.close()


async def test_topic_that_another_node_does_not_know_is_not_gone(trio: MovingTrio) -> None:
    """It hears of topics later than this one. A move that were given up for that would be made anew with what has died
    since, and what the target has of it would come twice."""
    await trio.create_queue()
    trio.wire.cuts.add((2, 1))
    await trio.reject([b"a"])
    await trio.until_dead(b"a", on=2)
    await trio.until(lambda: trio.nodes[1].line.lost_answers > 0)
    replicas = trio.nodes[2].replication.replicas
    trio.nodes[2].replication.replicas = Deaf(replicas)  # type: ignore[assignment]
    trio.wire.mend()
    await trio.reject([b"b"])
    asked = len(trio.nodes[1].line.sent)
    await trio.until(lambda: len(trio.nodes[1].line.sent) >= asked + 2)
    assert len(set(trio.nodes[1].line.sent)) == 1, "another batch than the one that was intended"
    trio.nodes[2].replication.replicas = replicas
    await trio.until_dead(b"a", b"b", on=2)


class Deaf:
    """A node that has not heard of the topic yet."""

    def __init__(self, replicas: NodeReplicas) -> None:
        self._deaf = NodeReplicas(replicas._feed, lambda _log: None, replicas._who_leads, replicas._readers)
        self._deaf.serve(ForwardKind.LANDING, land_for_another)
        self.forward = self._deaf.forward


async def test_batch_of_another_epoch_is_neither_taken_nor_judged(trio: MovingTrio) -> None:
    await trio.create_queue()
    log = LogName(trio.nodes[2].shell(topic=DEAD).log.home.topic_id, 0)
    await trio.elect(2, in_sync=(1, 2, 3), topic=DEAD)
    replicas = trio.nodes[2].replication.replicas

    async def ask(epoch: int) -> ReplicaProblem | None:
        forward = Forward(kind=ForwardKind.LANDING, log=log, leader_epoch=epoch, timeout_ms=1_000, body=b"no batch")
        return (await replicas.forward(forward, None)).problem

    assert await ask(0) is ReplicaProblem.FENCED_EPOCH
    assert await ask(2) is ReplicaProblem.UNKNOWN_EPOCH
    assert await ask(1) is None, "its leader says what it thinks of it"


async def test_letters_are_redriven_to_a_topic_that_another_node_leads(trio: MovingTrio) -> None:
    await trio.create_queue()
    letters = [b"%d" % number for number in range(20)]
    await trio.reject(letters)
    await trio.until_dead(*letters, on=2)
    source = QueueName(DEAD, REDRIVE_GROUP)
    task = await trio.nodes[2].redrives.begin(source)
    assert isinstance(task, RedriveTask), task
    await trio.until(lambda: (known := trio.nodes[2].redrives.get(task.id)) is not None and known.state.is_over)
    over = trio.nodes[2].redrives.get(task.id)
    assert over is not None
    assert (over.state, over.moved_count) == (RedriveState.COMPLETED, 20)
    assert trio.written(1)[20:] == letters


async def test_redrive_goes_on_with_another_leader_of_its_source(trio: MovingTrio) -> None:
    await trio.create_queue()
    letters = [b"%d" % number for number in range(20)]
    await trio.reject(letters)
    await trio.until_dead(*letters, on=2)
    source = QueueName(DEAD, REDRIVE_GROUP)
    task = await trio.nodes[2].redrives.begin(source, rate=50)
    assert isinstance(task, RedriveTask), task
    await trio.until(lambda: len(trio.written(1)) > 23)
    await trio.elect(3, in_sync=(1, 2, 3), topic=DEAD)
    await trio.until(lambda: (known := trio.nodes[3].redrives.get(task.id)) is not None and known.state.is_over)
    over = trio.nodes[3].redrives.get(task.id)
    assert over is not None
    assert over.state is RedriveState.COMPLETED, over
    await asyncio.wait_for(trio.until(lambda: len(trio.written(1)) == 40), PATIENCE_SECONDS)
    assert sorted(trio.written(1)[20:], key=lambda value: int(value or b"")) == letters
