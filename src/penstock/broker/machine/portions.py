"""A stretch of a log, read in portions and in threads: for a replay, whole or not at all; or to look for something.

What the log of a coordinator, of queues or of a schedule says is what was decided. A replay that ended at a bad place
would come to an older state, and serve it: committed offsets would be gone, acknowledged messages come back, delayed
ones never come. So everything that is not as it was written ends the replay by JournalDamagedError, which says what is
wrong and what an operator can do:

    damage that the store knows of       at or past the offset where the replay begins
    a bad batch                          every checksum is computed, also of bytes that were checked before
    a gap                                each batch begins where the one before it ends
    records that cannot be decoded       the batch is named: `penstock log repair --drop`
    an end that came too early           files beside the log were made of more than there is: see `check_reaches`

Other troubles pass (JournalLostError): whoever replays tries again.

Whoever only looks for something, such as a trace, takes what can be read: `read_slices`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import Final, Generic, TypeVar

import msgspec

from penstock.base.log_events import get_logger
from penstock.broker.partition.shell import PartitionShell
from penstock.codec.batch.header import BatchHeader, BatchProblem, check_batch, walk_headers
from penstock.codec.batch.records import read_records
from penstock.codec.columns.frame import VECTORED_ROWS_MIN, read_columns
from penstock.storage.errors import Damage, Damaged
from penstock.storage.log.flaws import WITHHELD
from penstock.storage.log.read_plan import ReadPlan

log = get_logger("journal")

# One read of a replay: large enough for the disk, small enough to be decoded without holding the interpreter for long.
PORTION_BYTES: Final = 2 * 1024 * 1024
# One read of somebody who looks for something: smaller, as it may end with any of them.
SLICE_BYTES: Final = 1024 * 1024

# Of whole batches: where each begins in the bytes, and its header.
Batches = Sequence[tuple[int, BatchHeader]]
# Offset, key and value.
LogRow = tuple[int, bytes | None, bytes | None]
Decoded = TypeVar("Decoded")


class JournalLostError(Exception):
    """The journal cannot be read from beginning to end, so what its coordinator should know is not known."""


class JournalDamagedError(JournalLostError):
    """The same, and it stays so until an operator has repaired the log."""


class UnreadableRecordsError(Exception):
    """Whoever decodes found something in a whole batch that nobody can have written."""


def damaged(shell: PartitionShell, why: str, *, dropped: int | None = None) -> JournalDamagedError:
    """`dropped`: an offset of the batch that a repair has to take out, because its checksum is right."""
    rule = "Nothing that rests on it is answered until it is repaired."
    return JournalDamagedError(f"{describe_damage(shell, why)} {rule} {repair_advice(shell, dropped=dropped)}")


def describe_damage(shell: PartitionShell, why: str) -> str:
    return f"The log {shell.topic}-{shell.index} is damaged: {why}."


def repair_advice(shell: PartitionShell, *, dropped: int | None = None) -> str:
    option = "" if dropped is None else f" --drop {dropped}"
    return f"Stop the node and run `penstock log repair {shell.topic} {shell.index}{option} --data-dir DIR`."


def check_whole(shell: PartitionShell, start: int = 0) -> None:
    """Raises if the store knows that anything from `start` on is not as it was written, or not there yet."""
    if shell.log.failure is not None:
        # Where its recovery has failed it looks empty, as if nothing had ever been decided.
        raise JournalLostError(f"{shell.topic}-{shell.index} is offline: {shell.log.failure}")
    _check_undamaged(shell, start)
    if shell.readable_end < shell.log.log_end:
        # A lost journal wrote something before the record that failed. It will be there, and is not yet.
        raise JournalLostError(f"{shell.topic}-{shell.index} is not readable to its end yet")


def _check_undamaged(shell: PartitionShell, start: int) -> None:
    log = shell.log
    _check_not_withheld(shell)
    damage = log.damage
    if damage is not None and (damage.offset >= start or log.log_end < start):
        raise damaged(shell, damage.describe())
    # Also where the end of the log is lost behind damage that does not matter.
    at_end = log.plan_read(log.log_end, bytes_max=1)
    if isinstance(at_end, Damaged):
        raise damaged(shell, at_end.damage.describe())
    if shell.has_lost:
        raise damaged(shell, "acknowledged records are gone since the disk failed a write")


def _check_not_withheld(shell: PartitionShell) -> None:
    """Nobody is told of damage that another replica does not have: it takes over in a moment."""
    if shell.log.flaws.is_withheld:
        raise JournalLostError(f"{shell.topic}-{shell.index}: {WITHHELD}")


def check_reaches(shell: PartitionShell, offset: int, name: str) -> None:
    """Raises if the log ends before `offset`, up to which the file of that name says what was in it."""
    if offset > shell.log.log_end:
        why = f"it ends at offset {shell.log.log_end}, and {name} beside it was made when it reached offset {offset}"
        raise damaged(shell, why)


async def read_portions(
    shell: PartitionShell,
    start: int,
    end: int,
    decode: Callable[[memoryview, Batches], Decoded],
    *,
    on_missing: Callable[[int], None] | None = None,
) -> AsyncIterator[Decoded]:
    """`decode` runs in a thread, on some whole batches at a time; a portion is read while the one before is used.
    `on_missing` is told how many offsets a repair has left without a record, as far as compaction lets that be seen."""
    _check_undamaged(shell, start)
    offset, missing_count = start, 0
    loading = _load(shell, offset, end, decode) if offset < end else None
    while loading is not None:
        decoded, offset, missing = await loading
        missing_count += missing
        loading = _load(shell, offset, end, decode) if offset < end else None
        yield decoded
    if missing_count:
        log.warning("journal was repaired", topic=shell.topic, partition=shell.index, offsets_lost=missing_count)
        if on_missing is not None:
            on_missing(missing_count)


def _load(
    shell: PartitionShell, offset: int, end: int, decode: Callable[[memoryview, Batches], Decoded]
) -> asyncio.Future[tuple[Decoded, int, int]]:
    plan = shell.log.plan_read(offset, bytes_max=PORTION_BYTES, up_to=end)
    if isinstance(plan, Damaged):
        raise damaged(shell, plan.damage.describe())
    if not isinstance(plan, ReadPlan):
        raise JournalLostError(f"{shell.topic}-{shell.index} cannot be read at offset {offset}: {plan}")
    return asyncio.get_running_loop().run_in_executor(None, _load_portion, shell, plan, offset, decode)


def _load_portion(
    shell: PartitionShell, plan: ReadPlan, offset: int, decode: Callable[[memoryview, Batches], Decoded]
) -> tuple[Decoded, int, int]:
    """Blocking: what one read comes to, the offset after it, and how many records are missing in it."""
    loaded = plan.load()
    _check_not_withheld(shell)
    if isinstance(loaded, Damage):
        if loaded.is_proven:
            raise damaged(shell, loaded.describe())
        raise JournalLostError(f"{shell.topic}-{shell.index}: {loaded.describe()}")
    batches = _checked(shell, loaded, offset)
    try:
        decoded = decode(loaded, batches)
    except (UnreadableRecordsError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _undecodable(shell, loaded, batches, decode) from error
    return decoded, batches[-1][1].next_offset, _missing_count(batches, shell.log.clean_end)


def _checked(shell: PartitionShell, loaded: memoryview, offset: int) -> list[tuple[int, BatchHeader]]:
    """The batches of a portion, the first of which holds `offset`: whole, and one after the other."""
    batches: list[tuple[int, BatchHeader]] = []
    expected = offset
    position = 0
    while position < len(loaded):
        header = check_batch(loaded, position)
        if isinstance(header, BatchProblem):
            raise damaged(shell, f"the batch at offset {expected}: {header.reason}")
        is_first = not batches and header.base_offset <= offset < header.next_offset
        if not is_first and header.base_offset != expected:
            raise damaged(shell, f"a batch begins at offset {header.base_offset}, expected {expected}")
        batches.append((position, header))
        expected = header.next_offset
        position += header.size_bytes
    if not batches:
        raise damaged(shell, f"nothing is found at offset {offset}")
    return batches


def _missing_count(batches: Batches, clean_end: int) -> int:
    """Journals are written without holes. Below `clean_end` compaction makes some, above it only repairs do."""
    return sum(
        header.last_offset_delta + 1 - header.record_count for _, header in batches if header.base_offset >= clean_end
    )


def _undecodable(
    shell: PartitionShell, loaded: memoryview, batches: Batches, decode: Callable[[memoryview, Batches], object]
) -> JournalDamagedError:
    """Names the first batch that is to blame."""
    for position, header in batches:
        try:
            decode(loaded[position : position + header.size_bytes], [(0, header)])
        except (UnreadableRecordsError, msgspec.DecodeError, UnicodeDecodeError) as error:
            why = f"records of the batch at offset {header.base_offset} cannot be read: {error}"
            return damaged(shell, why, dropped=header.base_offset)
    first, last = batches[0][1].base_offset, batches[-1][1].last_offset
    return damaged(shell, f"records from offset {first} to {last} cannot be read")


# What is not replayed but looked at: whoever looks for something takes what can be read, and others tell of damage.


class Slice(msgspec.Struct, Generic[Decoded], frozen=True):
    """Some whole batches that were looked at."""

    seen: Decoded
    next_offset: int
    size_bytes: int


async def read_slices(
    shell: PartitionShell,
    offset: int,
    look: Callable[[memoryview, Batches], Decoded],
    *,
    readers: Executor,
    bytes_max: int,
    end: int | None = None,
) -> AsyncIterator[Slice[Decoded]]:
    """What `look` sees, in a thread, from the batch that holds `offset` on; until all before `end` was read, which may
    lie inside a batch, or about so many bytes, or until the log cannot be read on."""
    loop = asyncio.get_running_loop()
    left_bytes = bytes_max
    while left_bytes > 0 and (end is None or offset < end):
        plan = shell.log.plan_read(offset, bytes_max=SLICE_BYTES)
        if not isinstance(plan, ReadPlan):
            return
        found = await loop.run_in_executor(readers, _look_at, plan, look)
        if found is None:
            return
        offset = found.next_offset
        left_bytes -= found.size_bytes
        yield found


def _look_at(plan: ReadPlan, look: Callable[[memoryview, Batches], Decoded]) -> Slice[Decoded] | None:
    """Blocking."""
    loaded = plan.load()
    batches = [] if isinstance(loaded, Damage) else list(walk_headers(loaded))
    if isinstance(loaded, Damage) or not batches:
        return None
    return Slice(look(loaded, batches), batches[-1][1].next_offset, len(loaded))


def rows_of(loaded: memoryview, batches: Batches) -> list[LogRow]:
    """Blocking: offsets, keys and values; of control batches nothing. A few are read one by one: columns cost more than
    that to begin with. UnreadableRecordsError if any of them cannot be read."""
    if sum(header.record_count for _, header in batches) < VECTORED_ROWS_MIN:
        return [row for position, header in batches for row in _rows_at(loaded, position, header)]
    frame = read_columns(loaded)
    if isinstance(frame, BatchProblem):
        raise UnreadableRecordsError(frame.reason)
    return list(zip(*(frame[name].to_list() for name in ("offset", "key", "value")), strict=True))


def readable_rows_of(loaded: memoryview, batches: Batches) -> list[LogRow]:
    """Blocking: the same without batches that cannot be read."""
    try:
        return rows_of(loaded, batches)
    except UnreadableRecordsError:
        found: list[LogRow] = []
        for position, header in batches:
            with suppress(UnreadableRecordsError):
                found += _rows_at(loaded, position, header)
        return found


def _rows_at(loaded: memoryview, position: int, header: BatchHeader) -> list[LogRow]:
    if header.is_control or not header.record_count:
        return []
    records = read_records(loaded, position)
    if isinstance(records, BatchProblem):
        raise UnreadableRecordsError(records.reason)
    return [(record.offset, record.key, record.value) for record in records]
