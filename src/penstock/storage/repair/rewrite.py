"""Makes a damaged log whole again, by the operator's word: damaged bytes are set aside, never thrown away.

What follows the damage keeps its offsets: the lost ones become one batch without records, which readers step over. So a
repair loses exactly what was damaged, and says what that is.

    before   [batch 0-4][????????][batch 9-12]
    after    [batch 0-4][empty 5-8][batch 9-12]     and the bytes in <segment>-<position>.damaged
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from penstock.base.checksum import crc32c
from penstock.codec.batch.header import (
    CHECKSUM_START,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    pack_header,
)
from penstock.storage.files.protocols import File, Files
from penstock.storage.files.small import write_fully
from penstock.storage.log.damage import DAMAGE_FILE
from penstock.storage.log.files import EPOCHS_FILE, PRODUCERS_FILE, read_log_start, write_log_start
from penstock.storage.repair.survey import LogProblem, LogSurvey, ProblemKind, segment_path
from penstock.storage.segment.facts import LOG_SUFFIX
from penstock.storage.segment.index_file import INDEX_SUFFIX, TIME_INDEX_SUFFIX
from penstock.storage.segment.side_files import remove_side_files

_COPY_BYTES: Final = 1 << 20
# Of one batch: its last offset delta is 32 bits.
_OFFSETS_MAX: Final = 2**31 - 1
DAMAGED_SUFFIX: Final = ".damaged"
REPAIR_SUFFIX: Final = ".repair"


class Repair(msgspec.Struct, frozen=True):
    """One problem that is no more, and where its bytes are now, if it had any."""

    problem: LogProblem
    saved_path: str | None


def repair_log(files: Files, survey: LogSurvey, forget_checkpoint: Callable[[], None]) -> list[Repair]:
    """Blocking. `forget_checkpoint`: the next start reads all of the log."""
    directory = survey.directory
    files.make_root(directory)
    by_segment: dict[int, list[LogProblem]] = {}
    for problem in survey.problems:
        by_segment.setdefault(problem.segment_base_offset, []).append(problem)
    # Set aside first: until all of it is safe, nothing is changed.
    repairs = [Repair(problem, _set_aside(files, directory, problem)) for problem in survey.problems]
    files.sync_directory(directory)
    forget_checkpoint()
    for base_offset, problems in sorted(by_segment.items()):
        _rewrite(files, directory, base_offset, problems)
    # Also where the checkpoint alone knew it, which is forgotten.
    if read_log_start(files, directory) != survey.log_start:
        write_log_start(files, directory, survey.log_start)
    for name in (PRODUCERS_FILE, EPOCHS_FILE, DAMAGE_FILE):
        files.remove(f"{directory}/{name}")
    files.sync_directory(directory)
    return repairs


def _set_aside(files: Files, directory: str, problem: LogProblem) -> str | None:
    if problem.start == problem.end:
        return None
    path = f"{directory}/{problem.segment_base_offset:020}-{problem.start}{DAMAGED_SUFFIX}"
    target = files.open(path, create=True)
    source = files.open(segment_path(directory, problem.segment_base_offset))
    _copy(source, target, problem.start, problem.end, 0)
    target.sync()
    return path


def _rewrite(files: Files, directory: str, base_offset: int, problems: list[LogProblem]) -> None:
    path = segment_path(directory, base_offset)
    temporary = path + REPAIR_SUFFIX
    files.remove(temporary)
    # The whole log may be missing: then its lost offsets are all that is in the new one.
    source = files.open(path, create=True)
    target = files.open(temporary, create=True)
    position = end = 0
    for problem in problems:
        end = _copy(source, target, position, problem.start, end)
        if problem.kind is not ProblemKind.TORN_TAIL and not problem.is_before_first_segment:
            filler = filler_for(problem)
            write_fully(target, filler, end)
            end += len(filler)
        position = problem.end
    _copy(source, target, position, source.size(), end)
    target.sync()
    prefix = path.removesuffix(LOG_SUFFIX)
    files.remove(prefix + INDEX_SUFFIX)
    files.remove(prefix + TIME_INDEX_SUFFIX)
    remove_side_files(files, prefix)
    files.sync_directory(directory)
    files.rename(temporary, path)
    files.sync_directory(directory)


def _copy(source: File, target: File, start: int, end: int, position: int) -> int:
    """The position after what was copied."""
    while start < end:
        data = source.read_at(start, min(_COPY_BYTES, end - start))
        write_fully(target, data, position)
        start += len(data)
        position += len(data)
    return position


def filler_for(problem: LogProblem) -> bytes:
    """Batches without records that stand for the lost offsets. They are of the leader epoch before them, or no follower
    would take them."""
    offset_start, offset_end = problem.offset_start, problem.offset_end
    parts = []
    while offset_start < offset_end:
        count = min(offset_end - offset_start, _OFFSETS_MAX)
        header = BatchHeader(
            base_offset=offset_start,
            length=HEADER_BYTES - LENGTH_PREFIX_BYTES,
            leader_epoch=problem.leader_epoch,
            magic=MAGIC,
            checksum=0,
            attributes=0,
            last_offset_delta=count - 1,
            base_timestamp=-1,
            max_timestamp=-1,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=-1,
            base_sequence=NO_SEQUENCE,
            record_count=0,
        )
        checksum = crc32c(pack_header(header)[CHECKSUM_START:])
        parts.append(pack_header(msgspec.structs.replace(header, checksum=checksum)))
        offset_start += count
    return b"".join(parts)
