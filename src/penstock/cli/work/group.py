"""What the group commands do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from penstock.base.clock import SystemClock
from penstock.cli.confirmation import confirm
from penstock.cli.failure import CommandError
from penstock.cli.moments import AtOffset, AtTime, Earliest, Latest, Start
from penstock.cli.option_values import partitions_by_topic, start_of
from penstock.cli.output import print_json, print_table, run_async, say
from penstock.cli.work.group_lag import records_behind
from penstock.client.errors import PartitionMissingError, TopicMissingError
from penstock.client.kafka import groups
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.groups import GroupInfo, GroupMember, GroupMissingError, Place
from penstock.client.kafka.offsets import OffsetRange, list_offsets, offset_ranges
from penstock.client.kafka.share_groups import describe_share_group, share_starts
from penstock.codec.kafka import ErrorCode
from penstock.net.address import parse_addresses
from penstock.net.errors import BrokerError

# Partitions that are looked into one after the other, a millisecond each.
COUNTED_MAX: Final = 200
PARTITION_COLUMNS: Final = ("topic", "partition", "committed", "end", "lag", "member", "host")
MEMBER_COLUMNS: Final = ("member", "instance", "client", "host", "partitions", "lag")


class PartitionLag(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    # None: nothing is committed, so there is no lag that could be told either.
    committed: int | None
    end: int | None
    lag: int | None
    member_id: str | None
    client_id: str | None
    host: str | None


class MemberLag(msgspec.Struct, frozen=True):
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: int
    lag: int


class Move(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    before: int | None
    after: int


# ---------------------------------------------------------------------- list


def list_groups(bootstrap: str, *, states: Sequence[str], types: Sequence[str], as_json: bool) -> None:
    async def work() -> list[groups.ListedGroup]:
        async with ClusterClient(parse_addresses(bootstrap)) as client:
            return await groups.list_groups(client, states=states, types=types)

    found = run_async(work())
    if as_json:
        print_json({"groups": found})
        return
    if not found:
        say("there are no groups" if not states and not types else "no group is like that")
        return
    columns = ("group", "type", "state", "protocol type")
    print_table(columns, [(row.group, row.type, row.state, row.protocol_type or None) for row in found])


# ---------------------------------------------------------------------- describe


def describe(bootstrap: str, group: str, *, as_json: bool) -> None:
    info, partitions = run_async(_describe(bootstrap, group))
    members = [_member_lag(member, partitions) for member in info.members]
    total = sum(row.lag or 0 for row in partitions)
    if as_json:
        print_json({
            "group": info.group,
            "type": info.type,
            "state": info.state,
            "assignor": info.assignor,
            "epoch": info.epoch,
            "coordinator": info.coordinator,
            "lag": total,
            "members": members,
            "partitions": partitions,
        })  # fmt: skip
        return
    facts = [("type", info.type), ("state", info.state), ("assignor", info.assignor or None), ("lag", f"{total:,}")]
    print_table(None, facts, title=f"group {group}")
    if partitions:
        print_table(PARTITION_COLUMNS, [_partition_cells(row) for row in partitions])
    if members:
        print_table(MEMBER_COLUMNS, [msgspec.structs.astuple(row) for row in members])


def _partition_cells(row: PartitionLag) -> tuple[object, ...]:
    return (row.topic, row.partition, row.committed, row.end, row.lag, row.member_id, row.host)


async def _describe(bootstrap: str, group: str) -> tuple[GroupInfo, list[PartitionLag]]:
    async with ClusterClient(parse_addresses(bootstrap)) as client:
        share = await describe_share_group(client, group)
        if share is not None:
            return share, await _share_lags(client, share)
        info = await groups.describe_group(client, group)
        committed = await groups.committed_offsets(client, group)
        owners = {place: member for member in info.members for place in member.assigned}
        places = sorted(committed.keys() | owners.keys())
        ends = await _ends(client, places)
        lags = [_partition_lag(place, committed.get(place), ends.get(place), owners.get(place)) for place in places]
        return info, await _count_records(client, lags)


async def _count_records(client: ClusterClient, lags: list[PartitionLag]) -> list[PartitionLag]:
    """Messages instead of offsets, where that can be had."""
    if sum(bool(row.lag) for row in lags) > COUNTED_MAX:
        return lags
    return [
        msgspec.structs.replace(
            row, lag=await records_behind(client, row.topic, row.partition, committed=row.committed, end=row.end)
        )
        if row.lag and row.committed is not None and row.end is not None
        else row
        for row in lags
    ]


async def _share_lags(client: ClusterClient, info: GroupInfo) -> list[PartitionLag]:
    """What is finished out of order is not behind, so the broker tells the lag. A partition may have many readers."""
    starts = await share_starts(client, info.group)
    ends = await _ends(client, starts)
    readers: dict[Place, list[GroupMember]] = {}
    for member in info.members:
        for place in member.assigned:
            readers.setdefault(place, []).append(member)
    lags = []
    for place, start in sorted(starts.items()):
        owner = readers[place][0] if len(readers.get(place, ())) == 1 else None
        row = _partition_lag(place, start.offset, ends.get(place), owner)
        lags.append(row if start.lag is None else msgspec.structs.replace(row, lag=start.lag))
    return lags


async def _ends(client: ClusterClient, places: Iterable[Place]) -> dict[Place, int]:
    """Of those that are still there: a topic may have been deleted since."""
    ends: dict[Place, int] = {}
    for topic, wanted in _by_topic(places).items():
        try:
            count = len((await client.topic(topic)).partitions)
        except TopicMissingError:
            continue
        ranges = await offset_ranges(client, topic, [number for number in wanted if number < count])
        ends |= {(topic, number): held.end for number, held in ranges.items()}
    return ends


def _partition_lag(place: Place, committed: int | None, end: int | None, owner: GroupMember | None) -> PartitionLag:
    # A log that was cut behind a group's back leaves it ahead of the end, not behind by less than nothing.
    lag = None if committed is None or end is None else max(0, end - committed)
    return PartitionLag(
        place[0],
        place[1],
        committed,
        end,
        lag,
        None if owner is None else owner.member_id,
        None if owner is None else owner.client_id,
        None if owner is None else owner.host,
    )


def _member_lag(member: GroupMember, partitions: Sequence[PartitionLag]) -> MemberLag:
    lag = sum(row.lag or 0 for row in partitions if row.member_id == member.member_id)
    return MemberLag(member.member_id, member.instance_id, member.client_id, member.host, len(member.assigned), lag)


# ---------------------------------------------------------------------- reset


def reset(bootstrap: str, group: str, *, to: str, topics: Sequence[str], is_dry_run: bool, as_json: bool) -> None:
    start = start_of(to, "--to", now_ms=SystemClock().now_ms())
    chosen = partitions_by_topic(topics)
    moves = run_async(_reset(bootstrap, group, start, chosen, is_dry_run=is_dry_run))
    if as_json:
        print_json({"group": group, "dry_run": is_dry_run, "partitions": moves})
    else:
        columns = ("topic", "partition", "before", "after")
        print_table(columns, [msgspec.structs.astuple(move) for move in moves], title=f"group {group}")
    count = f"{len(moves)} partition" + ("s" if len(moves) != 1 else "")
    say(f"{count} would be reset, nothing was changed" if is_dry_run else f"{count} reset")


async def _reset(
    bootstrap: str, group: str, start: Start, chosen: Mapping[str, Sequence[int]], *, is_dry_run: bool
) -> list[Move]:
    async with ClusterClient(parse_addresses(bootstrap)) as client:
        await _refuse_active(client, group, is_new_allowed=bool(chosen))
        committed = await groups.committed_offsets(client, group)
        places = await _places(client, chosen) if chosen else list(committed)
        if not places:
            raise CommandError(f"group {group!r} has committed nothing: give --topic to say what it shall read")
        targets: dict[Place, int] = {}
        for topic, partitions in _by_topic(places).items():
            ranges = await offset_ranges(client, topic, partitions)
            found = await _targets(client, topic, start, ranges)
            targets |= {(topic, number): offset for number, offset in found.items()}
        if not is_dry_run:
            await _commit(client, group, targets)
    return [Move(*place, committed.get(place), targets[place]) for place in sorted(targets)]


async def _refuse_active(client: ClusterClient, group: str, *, is_new_allowed: bool) -> None:
    try:
        info = await groups.describe_group(client, group)
    except GroupMissingError:
        # Where a group shall begin may be said before it is first started.
        if is_new_allowed:
            return
        raise
    if info.state != groups.EMPTY:
        raise CommandError(_active_sentence(group, len(info.members)))


def _active_sentence(group: str, count: int) -> str:
    members = "1 member that is" if count == 1 else f"{count} members that are" if count else "members that are"
    return f"group {group!r} has {members} active: its offsets can be moved only when none is"


async def _places(client: ClusterClient, chosen: Mapping[str, Sequence[int]]) -> list[Place]:
    places: list[Place] = []
    for topic, numbers in chosen.items():
        count = len((await client.topic(topic)).partitions)
        for number in numbers:
            if number >= count:
                raise PartitionMissingError(topic, number, count)
        places += [(topic, number) for number in numbers or range(count)]
    return places


async def _targets(
    client: ClusterClient, topic: str, start: Start, ranges: Mapping[int, OffsetRange]
) -> dict[int, int]:
    match start:
        case Earliest():
            return {number: held.start for number, held in ranges.items()}
        case Latest():
            return {number: held.end for number, held in ranges.items()}
        case AtOffset(offset):
            # Moved to where there is something: a reader past the end would fall back to its own default.
            return {number: min(max(offset, held.start), held.end) for number, held in ranges.items()}
        case AtTime(timestamp_ms):
            found = await list_offsets(client, topic, dict.fromkeys(ranges, timestamp_ms))
            # -1: nothing is that young, so what comes from now on is what was asked for.
            return {number: ranges[number].end if offset < 0 else offset for number, offset in found.items()}


async def _commit(client: ClusterClient, group: str, targets: Mapping[Place, int]) -> None:
    try:
        await groups.commit_offsets(client, group, targets)
    except BrokerError as error:
        # Somebody joined between the question and the commit.
        if error.code == ErrorCode.UNKNOWN_MEMBER_ID:
            raise CommandError(_active_sentence(group, 0)) from error
        raise


# ---------------------------------------------------------------------- delete


def delete(bootstrap: str, names: Sequence[str], *, is_confirmed: bool, as_json: bool) -> None:
    names = list(dict.fromkeys(names))
    question = f"Delete {', '.join(names)} with all offsets?"
    confirm(question, is_confirmed=is_confirmed, refused="nothing was deleted")
    failures = run_async(_delete(bootstrap, names))
    deleted = [name for name in names if name not in failures]
    if as_json:
        print_json({"deleted": deleted, "failed": failures})
    else:
        for name in deleted:
            say(f"group {name!r} deleted")
    if failures:
        raise CommandError("; ".join(failures.values()))


async def _delete(bootstrap: str, names: Sequence[str]) -> dict[str, str]:
    """One by one: the first refusal must not hide what became of the others. Why not, by name."""
    failures: dict[str, str] = {}
    async with ClusterClient(parse_addresses(bootstrap)) as client:
        for name in names:
            try:
                await groups.delete_group(client, name)
            except GroupMissingError as error:
                failures[name] = str(error)
            except BrokerError as error:
                if error.code != ErrorCode.NON_EMPTY_GROUP:
                    raise
                failures[name] = f"group {name!r} has members that are active: it can be deleted only when none is"
    return failures


def _by_topic(places: Iterable[Place]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(places):
        by_topic.setdefault(topic, []).append(number)
    return by_topic
