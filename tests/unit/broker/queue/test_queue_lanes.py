"""Priority lanes over a backlog of any size: what is found, what it costs, and what becomes of the side files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.broker.partition.deletion import delete_before
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.queue.delivery import Message, ReceiptSettlement
from penstock.broker.queue.lanes import LaneIndex
from penstock.broker.queue.shell import QueueShell
from penstock.codec.batch.compression import Codec
from penstock.codec.batch.records import Record
from penstock.domain.queue.commands import Act, MoveStart, Outcome
from penstock.domain.queue.definition import QueueName, QueueOptions
from penstock.domain.queue.values import Ordering
from penstock.storage.segment.lanes import facts_of, read_lane_file
from support.queue.broker import QueueBroker
from support.queue.watched_reader import WatchedReader


class PatientBroker(QueueBroker):
    """A look waits for the search, however busy the machine is."""

    async def start(self) -> None:
        await super().start()
        self.queues.lane_scans.first_wait_ms = self.queues.lane_scans.wait_ms = 20_000


@pytest.fixture
async def desk() -> AsyncIterator[QueueBroker]:
    made = PatientBroker()
    await made.start()
    yield made
    await made.stop()


def urgent(value: bytes, lane: int = 9, **more: bytes) -> Record:
    named = tuple((f"penstock-{name.replace('_', '-')}", each) for name, each in more.items())
    return Record(value=value, timestamp_ms=1_000, headers=(("penstock-priority", b"%d" % lane), *named))


async def backlog(desk: QueueBroker, count: int, *, batch_count: int = 100, codec: Codec = Codec.NONE) -> None:
    for first in range(0, count, batch_count):
        await desk.send("orders", [b"%08d" % (first + each) for each in range(batch_count)], codec=codec)


def values(messages: list[Message]) -> list[bytes | None]:
    return [message.record.value for message in messages]


def lane_values(messages: list[Message], *lanes: int) -> list[bytes | None]:
    return [message.record.value for message in messages if message.lane in lanes]


async def accept(desk: QueueBroker, name: QueueName, messages: list[Message], act: Act = Act.ACCEPT) -> None:
    outcomes = await desk.delivery.settle(name, [ReceiptSettlement(message.receipt, act) for message in messages])
    assert outcomes == [Outcome.DONE] * len(messages)


def shell_of(desk: QueueBroker) -> QueueShell:
    (shell,) = desk.queues.loaded_shells()
    return shell


def index_of(desk: QueueBroker) -> LaneIndex:
    index = shell_of(desk).reader.lanes
    assert index is not None
    return index


def partition_of(desk: QueueBroker) -> PartitionShell:
    return shell_of(desk).partition


def side_files(desk: QueueBroker) -> list[str]:
    directory = partition_of(desk).log.home.directory
    return [name for name in desk.files.list_directory(directory) if name.endswith(".lanes")]


async def drain(desk: QueueBroker, name: QueueName) -> list[Message]:
    seen: list[Message] = []
    for _ in range(10_000):
        messages = await desk.receive(name, 100)
        if not messages and not index_of(desk).is_scanning:
            return seen
        if not messages:
            assert await index_of(desk).wait(10_000)
        await accept(desk, name, messages)
        seen += messages
    raise AssertionError("never empty")


# --- the backlog -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
async def test_an_urgent_message_behind_200_000_others_comes_first(desk: QueueBroker, codec: Codec) -> None:
    await desk.topic("orders", segment_bytes="500000")
    name = await desk.queue("orders")
    await backlog(desk, 200_000, batch_count=2_000, codec=codec)
    await desk.send("orders", [urgent(b"now")])
    first = await desk.receive(name, 10)
    assert values(first)[0] == b"now"
    assert values(first)[1:] == [b"%08d" % number for number in range(9)]
    await accept(desk, name, first)
    # It is not delivered once more when the default lane comes by.
    (shell,) = desk.queues.loaded_shells()
    queue = shell.queue("workers")
    assert queue is not None
    assert queue.cursor(9) == 200_001
    assert queue.cursor() == 9
    await desk.restart()
    assert values(await desk.receive(name, 2)) == [b"%08d" % number for number in (9, 10)]


async def test_lanes_come_in_their_order_and_lower_ones_get_their_share(desk: QueueBroker) -> None:
    await desk.topic("orders", segment_bytes="20000")
    name = await desk.queue("orders")
    await backlog(desk, 3_000)
    await desk.send("orders", [urgent(b"low-%d" % each, 0) for each in range(50)])
    await backlog(desk, 3_000)
    await desk.send("orders", [urgent(b"high-%d" % each, 9) for each in range(50)])
    await desk.send("orders", [urgent(b"middle-%d" % each, 6) for each in range(50)])
    first = await desk.receive(name, 40)
    assert lane_values(first, 9) == [b"high-%d" % each for each in range(36)]
    # In turn: every tenth message.
    assert [message.lane for message in first if message.lane != 9] == [6, 6, 4, 0]
    everything = first + await drain(desk, name)
    assert len(everything) == 6_150
    assert len({message.record.offset for message in everything}) == 6_150
    for lane, text in ((0, b"low"), (6, b"middle"), (9, b"high")):
        assert lane_values(everything, lane) == [text + b"-%d" % each for each in range(50)]
    assert lane_values(everything, 4) == [b"%08d" % each for _ in range(2) for each in range(3_000)]


async def test_what_is_less_urgent_waits_and_is_not_forgotten(desk: QueueBroker) -> None:
    await desk.topic("orders", segment_bytes="20000")
    name = await desk.queue("orders")
    await desk.send("orders", [urgent(b"someday", 0)])
    await backlog(desk, 2_000)
    first = await desk.receive(name, 5)
    assert lane_values(first, 0) == []
    await desk.restart()
    rest = await drain(desk, name)
    assert lane_values(rest, 0) == [b"someday"]
    assert len(rest) == 2_001 - 5


async def test_an_urgent_message_overtakes_those_that_come_back(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    await backlog(desk, 100)
    await accept(desk, name, await desk.receive(name, 50), Act.RELEASE)
    await desk.send("orders", [urgent(b"now")])
    assert values(await desk.receive(name, 5))[0] == b"now"


async def test_expired_urgent_messages_are_passed(desk: QueueBroker) -> None:
    await desk.topic("orders", segment_bytes="20000")
    name = await desk.queue("orders")
    await backlog(desk, 3_000)
    await desk.send("orders", [urgent(b"too late", ttl_ms=b"5"), urgent(b"in time")])
    assert lane_values(await desk.receive(name, 20), 9) == [b"in time"]


async def test_with_ordering_by_key_there_are_no_lanes(desk: QueueBroker) -> None:
    await desk.topic("orders", segment_bytes="20000")
    name = await desk.queue("orders", options=QueueOptions(ordering=Ordering.KEY))
    await backlog(desk, 2_000)
    await desk.send("orders", [urgent(b"now")])
    assert values(await desk.receive(name, 1)) == [b"%08d" % 0]
    assert index_of(desk).chunk_count == 0


async def test_a_start_that_is_moved_back_brings_all_lanes_back(desk: QueueBroker) -> None:
    await desk.topic("orders", segment_bytes="20000")
    name = await desk.queue("orders")
    await desk.send("orders", [urgent(b"first")])
    await backlog(desk, 2_000)
    await desk.send("orders", [urgent(b"last")])
    assert lane_values(await drain(desk, name), 9) == [b"first", b"last"]
    await shell_of(desk).submit("workers", MoveStart(0))
    again = await drain(desk, name)
    assert lane_values(again, 9) == [b"first", b"last"]
    assert len(again) == 2_002


async def test_who_waits_gets_what_the_search_finds(desk: QueueBroker) -> None:
    """The default lane is at its end; what is left lies far behind, and nobody remembers where."""
    desk.queues.lane_scans.first_wait_ms = desk.queues.lane_scans.wait_ms = 1
    await desk.topic("orders", segment_bytes="20000")
    name = await desk.queue("orders")
    await desk.send("orders", [urgent(b"someday", 0)])
    await backlog(desk, 4_000)
    scans = desk.queues.lane_scans
    async with scans.turn:
        # The first nine messages are of higher lanes, and then nothing is known any more of the one behind.
        taken = [message for count in (5, *[1_000] * 4) for message in await desk.receive(name, count)]
        assert lane_values(taken, 4) == values(taken)
        assert len(taken) == 4_000
        waiting = asyncio.ensure_future(desk.receive(name, 10, wait_ms=20_000))
        assert await desk.receive(name, 10) == []
    assert values(await asyncio.wait_for(waiting, 10)) == [b"someday"]


async def test_a_start_that_is_moved_during_a_look_hides_nothing(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    await desk.send("orders", [b"a", b"b", urgent(b"now"), *(b"%d" % each for each in range(20))])
    assert values(await desk.receive(name, 2)) == [b"now", b"a"]
    shell = shell_of(desk)

    def move(reader: WatchedReader) -> None:
        shell.reader = reader.true
        shell.decide("workers", MoveStart(1))

    shell.reader = WatchedReader(shell.reader, move)
    assert values(await desk.receive(name, 3)) == [b"now", b"b", b"0"]


async def test_peek_shows_what_is_open_in_every_lane(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    await desk.send("orders", [b"a", b"b", b"c"])
    await desk.send("orders", [urgent(b"done"), urgent(b"open", 0)])
    await accept(desk, name, await desk.receive(name, 1))
    peeked = await desk.delivery.peek(name, 10)
    assert isinstance(peeked, list)
    assert [message.record.value for message in peeked] == [b"a", b"b", b"c", b"open"]


# --- what it costs ---------------------------------------------------------------------------------------------------


async def test_a_consumer_that_keeps_up_needs_no_search(desk: QueueBroker) -> None:
    await desk.topic("orders", segment_bytes="5000")
    name = await desk.queue("orders")
    for number in range(100):
        await desk.send("orders", [b"%d" % number, urgent(b"u%d" % number)])
        messages = await desk.receive(name, 10)
        assert len(messages) == 2
        await accept(desk, name, messages)
    assert index_of(desk).chunk_count == 0
    assert side_files(desk) == []


async def test_a_backlog_without_lanes_costs_next_to_no_memory(desk: QueueBroker) -> None:
    await desk.topic("orders", segment_bytes="5000")
    name = await desk.queue("orders")
    await backlog(desk, 20_000)
    await desk.receive(name, 1)
    assert await index_of(desk).wait(10_000)
    assert index_of(desk).chunk_count <= 2
    assert desk.queues.lane_scans.memory.size_bytes == 0


async def test_memory_is_bounded_and_what_left_it_comes_back(desk: QueueBroker) -> None:
    await desk.topic("orders", segment_bytes="5000")
    name = await desk.queue("orders")
    scans = desk.queues.lane_scans
    scans.memory.bytes_max = 200
    for number in range(1_000):
        await desk.send("orders", [b"%d" % number, urgent(b"u%d" % number, number % 4)])
    await desk.receive(name, 1)
    assert await index_of(desk).wait(10_000)
    partition = partition_of(desk)
    assert partition.log.segments[-1].record_count * 4 + 200 > scans.memory.size_bytes
    everything = await drain(desk, name)
    assert len(everything) == 1_999
    assert partition.log.segments[-1].record_count * 4 + 200 > scans.memory.size_bytes


async def test_a_start_reads_side_files_and_not_the_log(desk: QueueBroker) -> None:
    await desk.topic("orders", segment_bytes="20000")
    name = await desk.queue("orders")
    await backlog(desk, 10_000)
    await desk.send("orders", [urgent(b"now")])
    await backlog(desk, 10_000)
    await desk.receive(name, 1)
    assert await index_of(desk).wait(10_000)
    sealed = len(partition_of(desk).log.segments) - 1
    assert len(side_files(desk)) == sealed
    await desk.restart()
    desk.queues.lane_scans.searched_bytes = 0
    await desk.receive(name, 1)
    assert await index_of(desk).wait(10_000)
    assert desk.queues.lane_scans.searched_bytes <= 20_000


async def test_queues_of_one_partition_share_what_is_known(desk: QueueBroker) -> None:
    await desk.topic("orders", segment_bytes="20000")
    first = await desk.queue("orders", "first")
    await desk.send("orders", [urgent(b"early")])
    await backlog(desk, 1_000)
    assert len(await drain(desk, first)) == 1_001
    await backlog(desk, 1_000)
    await desk.send("orders", [urgent(b"late")])
    assert values(await desk.receive(first, 1)) == [b"late"]
    # Begins before everything that is known.
    second = await desk.queue("orders", "second")
    both = await desk.receive(second, 2)
    assert values(both) == [b"early", b"late"]
    assert len(await drain(desk, second)) == 2_000
    assert len(await drain(desk, first)) == 1_000


# --- the log changes -------------------------------------------------------------------------------------------------


async def test_side_files_go_with_their_segments(desk: QueueBroker) -> None:
    await desk.topic("orders", segment_bytes="5000")
    name = await desk.queue("orders")
    await backlog(desk, 10_000)
    await desk.send("orders", [urgent(b"now")])
    await desk.receive(name, 1)
    assert await index_of(desk).wait(10_000)
    await desk.store.checkpoint()
    partition = partition_of(desk)
    assert isinstance(await delete_before(partition, 9_000), int)
    bases = [f"{segment.base_offset:020}.lanes" for segment in partition.log.segments]
    assert set(side_files(desk)) <= set(bases)
    rest = await drain(desk, name)
    assert values(rest) == [b"%08d" % number for number in range(9_000, 10_000)]


async def test_a_log_that_was_cut_is_searched_again(desk: QueueBroker) -> None:
    await desk.topic("orders", segment_bytes="5000")
    name = await desk.queue("orders")
    await backlog(desk, 2_000)
    await desk.receive(name, 1)
    assert await index_of(desk).wait(10_000)
    log = partition_of(desk).log
    await asyncio.to_thread(desk.store.truncate_log, log, 1_000)
    await backlog(desk, 500)
    await desk.send("orders", [urgent(b"now")])
    await backlog(desk, 300)
    assert values(await desk.receive(name, 1)) == [b"now"]


async def test_a_file_that_is_bad_is_made_again(desk: QueueBroker) -> None:
    await desk.topic("orders", segment_bytes="5000")
    name = await desk.queue("orders")
    await backlog(desk, 5_000)
    await desk.send("orders", [urgent(b"now")])
    await backlog(desk, 1_000)
    directory = partition_of(desk).log.home.directory
    await desk.receive(name, 1)
    assert await index_of(desk).wait(10_000)
    count = len(side_files(desk))
    for file_name in side_files(desk):
        desk.files.open(f"{directory}/{file_name}").truncate(20)
    await shell_of(desk).submit("workers", MoveStart(0))
    await desk.restart()
    assert values(await desk.receive(name, 1)) == [b"now"]
    assert await index_of(desk).wait(10_000)
    sizes = desk.files.file_sizes(directory)
    assert len(side_files(desk)) == count
    assert all(sizes[file_name] > 20 for file_name in side_files(desk))


async def test_a_part_of_a_segment_is_not_taken_for_the_whole(desk: QueueBroker) -> None:
    """The search began in the middle of the last segment, which was then filled and sealed."""
    await desk.topic("orders", segment_bytes="5000")
    first = await desk.queue("orders", "first")
    await desk.send("orders", [urgent(b"early")])
    await backlog(desk, 100)
    assert len(await desk.receive(first, 200)) == 101
    await backlog(desk, 200)
    await desk.receive(first, 1)
    assert await index_of(desk).wait(10_000)
    await backlog(desk, 2_000)
    await desk.receive(first, 1)
    assert await index_of(desk).wait(10_000)
    assert f"{0:020}.lanes" not in side_files(desk)
    second = await desk.queue("orders", "second")
    await desk.restart()
    assert values(await desk.receive(second, 1)) == [b"early"]


async def test_compaction_takes_messages_of_all_lanes(desk: QueueBroker) -> None:
    overrides = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.bytes": "3000"}
    await desk.catalog.create_topic("orders", 1, overrides)
    name = await desk.queue("orders")
    now_ms = desk.clock.now_ms()
    for number in range(400):
        headers = (("penstock-priority", b"9"),) if number % 5 == 0 else ()
        key = b"%d" % (number % 40)
        await desk.send("orders", [Record(value=b"%d" % number, key=key, timestamp_ms=now_ms, headers=headers)])
    await desk.receive(name, 1)
    assert await index_of(desk).wait(10_000)
    partition = partition_of(desk)
    before = len(partition.log.segments)
    partition.log.roll()
    desk.store.checkpoint_now(every_log=True)
    await desk.broker._upkeep.clean_logs()
    assert len(partition.log.segments) < before
    bases = {f"{segment.base_offset:020}.lanes": segment for segment in partition.log.segments}
    assert set(side_files(desk)) <= set(bases)
    assert all(read_lane_file(desk.files, facts_of(bases[file_name])) for file_name in side_files(desk))
    shell_of(desk).reader.forget()
    rest = await drain(desk, name)
    left = [record.value for record in await desk.log_of("orders")]
    assert len(left) == 40
    assert sorted(values(rest)) == sorted(left)  # type: ignore[type-var]
    await desk.restart()
    await shell_of(desk).submit("workers", MoveStart(0))
    assert sorted(values(await drain(desk, name))) == sorted(left)  # type: ignore[type-var]
