"""The options of the Spark source: names and meanings of Spark's own Kafka connector, read into one struct.

Spark hands option names over in lower case. What is not understood is an error that names the option: a job that
silently reads from somewhere else is worse than one that does not start. Options of Kafka's client (`kafka.*`) that
mean nothing here are passed over, so that a job can be moved by changing its format alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import Enum
from typing import Final, TypeVar

import msgspec

from penstock.base.typed_values import convert, read_json
from penstock.pipeline.source.filters import Narrowing

BOOTSTRAP_DEFAULT: Final = "127.0.0.1:9092"
GROUP_PREFIX_DEFAULT: Final = "penstock-spark"
# As Kafka writes them in offsets.
LATEST: Final = -1
EARLIEST: Final = -2

Struct = TypeVar("Struct")
PartitionOffsets = dict[str, dict[int, int]]

_DURATION: Final = re.compile(r"\s*(\d+)\s*(ms|s|sec|m|min|h|d)?\s*")
_UNIT_MS: Final = {
    None: 1,
    "ms": 1,
    "s": 1_000,
    "sec": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_TRUTHS: Final = {"true": True, "false": False}
_KNOWN: Final = frozenset({
    "bootstrap", "subscribe", "subscribepattern", "assign", "startingoffsets", "startingtimestamp",
    "startingoffsetsbytimestamp", "startingoffsetsbytimestampstrategy", "endingoffsets", "endingtimestamp",
    "endingoffsetsbytimestamp", "failondataloss", "maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay",
    "minpartitions", "maxrecordsperpartition", "includeheaders", "groupidprefix", "group", "queryname",
    "archive", "archiveversion", "archivehalf", "narrow", "snapshot", "archiveto", "topicids",
    "fetchoffset.numretries", "fetchoffset.retryintervalms", "kafkaconsumer.polltimeoutms", "path",
})  # fmt: skip


class OptionError(ValueError):
    """One sentence for whoever wrote the job."""


class TimestampStrategy(Enum):
    """What to do in a partition where no message is that young."""

    ERROR = "error"
    LATEST = "latest"


class Bound(msgspec.Struct, frozen=True):
    """Where reading begins or ends; one of the fields says it."""

    # EARLIEST or LATEST for all partitions.
    everywhere: int | None = None
    offsets: PartitionOffsets | None = None
    timestamp_ms: int | None = None
    timestamps_ms: PartitionOffsets | None = None


class TableSnapshot(msgspec.Struct, frozen=True):
    """Where a table begins and ends, found out before; in an archive as well, if there was one."""

    start: PartitionOffsets
    end: PartitionOffsets
    archive_version: int | None = None


class SourceOptions(msgspec.Struct, frozen=True):
    bootstrap: str
    starting: Bound
    ending: Bound
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: dict[str, list[int]] | None = None
    strategy: TimestampStrategy = TimestampStrategy.ERROR
    fails_on_data_loss: bool = True
    rows_per_trigger_max: int | None = None
    rows_per_trigger_min: int | None = None
    trigger_delay_ms_max: int = 15 * 60_000
    partitions_min: int | None = None
    rows_per_partition_max: int | None = None
    includes_headers: bool = False
    is_read_committed: bool = False
    # The group that shows how far the query is; None: named for the query (`query_group`), behind the prefix. Nobody
    # follows a batch query.
    group: str | None = None
    group_prefix: str = GROUP_PREFIX_DEFAULT
    # An archive of the same topics (`archive/source`): what it holds is read from there; None: the log alone.
    archive: str | None = None
    archive_version: int | None = None
    # Only what the archive does not hold: its half is read by other means.
    is_log_half: bool = False
    # What the caller knows that it does not need, as a filter would say it.
    narrowing: Narrowing = Narrowing()
    # Goes before all that says where to begin and to end.
    snapshot: TableSnapshot | None = None
    # A table that tasks write to themselves (`table/task_files`); None: rows are handed to Spark.
    writes_to: str | None = None
    # Which topics are meant, by name: others of the same name are an error (`topic_identity`); None: whatever they are.
    topic_ids: dict[str, int] | None = None


def parse_options(options: Mapping[str, str], *, is_streaming: bool) -> SourceOptions:
    known = {name.lower(): value for name, value in options.items()}
    for name in known:
        if name not in _KNOWN and not name.startswith("kafka."):
            raise OptionError(f"option {name!r} is not known to the penstock source")
    topics, pattern, assigned = _parse_what(known)
    return SourceOptions(
        bootstrap=known.get("kafka.bootstrap.servers") or known.get("bootstrap") or BOOTSTRAP_DEFAULT,
        starting=_parse_bound(known, "starting", LATEST if is_streaming else EARLIEST),
        ending=_parse_bound(known, "ending", LATEST),
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        strategy=_parse_strategy(known),
        fails_on_data_loss=_truth(known, "failondataloss", True),
        rows_per_trigger_max=_count(known, "maxoffsetspertrigger"),
        rows_per_trigger_min=_count(known, "minoffsetspertrigger"),
        trigger_delay_ms_max=_duration_ms(known, "maxtriggerdelay", 15 * 60_000),
        partitions_min=_count(known, "minpartitions"),
        rows_per_partition_max=_count(known, "maxrecordsperpartition"),
        includes_headers=_truth(known, "includeheaders", False),
        is_read_committed=known.get("kafka.isolation.level", "") == "read_committed",
        group=_group(known) if is_streaming else None,
        group_prefix=_group_prefix(known),
        archive=known.get("archive") or None,
        archive_version=_number("archiveVersion", known["archiveversion"]) if "archiveversion" in known else None,
        is_log_half=known.get("archivehalf", "both").lower() == "log",
        narrowing=_struct(known, "narrow", Narrowing) or Narrowing(),
        snapshot=_struct(known, "snapshot", TableSnapshot),
        writes_to=known.get("archiveto") or None,
        topic_ids=_struct(known, "topicids", dict[str, int]),
    )


def _struct(options: Mapping[str, str], name: str, kind: type[Struct]) -> Struct | None:
    """An option that programs write."""
    if name not in options:
        return None
    try:
        return read_json(options[name], kind)
    except msgspec.MsgspecError as error:
        raise OptionError(f"{name} is not understood: {error}") from error


def _parse_what(options: Mapping[str, str]) -> tuple[tuple[str, ...], str | None, dict[str, list[int]] | None]:
    given = [name for name in ("subscribe", "subscribepattern", "assign", "path") if options.get(name)]
    if len(given) != 1:
        told = ", ".join(given) or "none"
        raise OptionError(f"one of subscribe, subscribePattern and assign says what to read; given: {told}")
    (name,) = given
    if name == "subscribepattern":
        return (), options[name], None
    if name == "assign":
        found = _json(options, name)
        try:
            return (), None, convert(found, dict[str, list[int]])
        except msgspec.ValidationError as error:
            raise OptionError(f'assign: {{"topic": [0, 1]}} is meant: {error}') from error
    topics = tuple(sorted({topic.strip() for topic in options[name].split(",") if topic.strip()}))
    if not topics:
        raise OptionError(f"{name} names no topic")
    return topics, None, None


def _parse_bound(options: Mapping[str, str], side: str, default: int) -> Bound:
    timestamp = options.get(f"{side}timestamp")
    if timestamp is not None:
        return Bound(timestamp_ms=_number(f"{side}Timestamp", timestamp))
    if options.get(f"{side}offsetsbytimestamp"):
        return Bound(timestamps_ms=_partition_numbers(options, f"{side}offsetsbytimestamp"))
    text = options.get(f"{side}offsets", "").strip()
    if not text:
        return Bound(everywhere=default)
    if text.lower() in ("earliest", "latest"):
        if side == "ending" and text.lower() == "earliest":
            raise OptionError("endingOffsets cannot be earliest: nothing would be read")
        return Bound(everywhere=EARLIEST if text.lower() == "earliest" else LATEST)
    return Bound(offsets=_partition_numbers(options, f"{side}offsets"))


def _partition_numbers(options: Mapping[str, str], name: str) -> PartitionOffsets:
    found = _json(options, name)
    try:
        return convert(found, PartitionOffsets, strict=False)
    except msgspec.ValidationError as error:
        raise OptionError(f'{name}: {{"topic": {{"0": 23}}}} is meant: {error}') from error


def _parse_strategy(options: Mapping[str, str]) -> TimestampStrategy:
    text = options.get("startingoffsetsbytimestampstrategy", "error").lower()
    try:
        return TimestampStrategy(text)
    except ValueError:
        raise OptionError(f"startingOffsetsByTimestampStrategy is {text!r}, error or latest is meant") from None


def _group(options: Mapping[str, str]) -> str | None:
    if options.get("kafka.group.id") or options.get("group"):
        return options.get("kafka.group.id") or options["group"]
    return f"{_group_prefix(options)}-{options['queryname']}" if options.get("queryname") else None


def _group_prefix(options: Mapping[str, str]) -> str:
    return options.get("groupidprefix") or GROUP_PREFIX_DEFAULT


def _json(options: Mapping[str, str], name: str) -> object:
    try:
        return json.loads(options[name])
    except ValueError as error:
        raise OptionError(f"{name} is not JSON: {error}") from error


def _number(name: str, text: str) -> int:
    if not text.strip().lstrip("-").isdigit():
        raise OptionError(f"{name} is {text!r}, a whole number is meant")
    return int(text)


def _count(options: Mapping[str, str], name: str) -> int | None:
    if name not in options:
        return None
    count = _number(name, options[name])
    if count < 1:
        raise OptionError(f"{name} is {count}, at least 1 is meant")
    return count


def _truth(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in _TRUTHS:
        raise OptionError(f"{name} is {text!r}, true or false is meant")
    return _TRUTHS[text]


def _duration_ms(options: Mapping[str, str], name: str, default: int) -> int:
    if name not in options:
        return default
    found = _DURATION.fullmatch(options[name].lower())
    if found is None:
        raise OptionError(f"{name} is {options[name]!r}, a time such as 15m or 30s is meant")
    return int(found[1]) * _UNIT_MS[found[2]]
