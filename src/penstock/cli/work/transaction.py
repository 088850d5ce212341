"""What the transaction commands do."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from penstock.base.clock import SystemClock
from penstock.cli.confirmation import confirm
from penstock.cli.failure import EXIT_USAGE, CommandError
from penstock.cli.option_values import duration_ms, partitions_by_topic
from penstock.cli.output import print_json, print_table, run_async, say
from penstock.client.errors import PartitionMissingError
from penstock.client.kafka import transactions
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.transactions import ActiveProducer, ListedTransaction, Place, TransactionInfo
from penstock.net.address import parse_addresses

# What a marker carries that no coordinator sends: lower than any, so that it never shuts one out.
NO_COORDINATOR_EPOCH: Final = 0

PRODUCER_COLUMNS: Final = (
    "topic",
    "partition",
    "producer",
    "epoch",
    "coordinator epoch",
    "last sequence",
    "last time",
    "transaction begins at",
)


# ---------------------------------------------------------------------- list


def list_transactions(
    bootstrap: str,
    *,
    states: Sequence[str],
    producer_ids: Sequence[int],
    longer_than: str | None,
    id_pattern: str | None,
    as_json: bool,
) -> None:
    longer_than_ms = -1 if longer_than is None else duration_ms(longer_than, "--longer-than")

    async def work() -> list[ListedTransaction]:
        async with ClusterClient(parse_addresses(bootstrap)) as client:
            return await transactions.list_transactions(
                client,
                states=states,
                producer_ids=producer_ids,
                longer_than_ms=longer_than_ms,
                id_pattern=id_pattern,
            )

    found = run_async(work())
    if as_json:
        print_json({"transactions": found})
        return
    columns = ("transactional id", "coordinator", "producer", "state")
    print_table(columns, [(row.transactional_id, row.coordinator, str(row.producer_id), row.state) for row in found])


# ---------------------------------------------------------------------- describe


def describe(bootstrap: str, transactional_id: str, *, as_json: bool) -> None:
    async def work() -> TransactionInfo:
        async with ClusterClient(parse_addresses(bootstrap)) as client:
            return await transactions.describe_transaction(client, transactional_id)

    found = run_async(work())
    now_ms = SystemClock().now_ms()
    duration_ms = None if found.start_ms is None else max(0, now_ms - found.start_ms)
    if as_json:
        partitions = [{"topic": topic, "partition": number} for topic, number in found.partitions]
        fields = {**msgspec.structs.asdict(found), "duration_ms": duration_ms, "partitions": partitions}
        print_json(fields)
        return
    facts = [
        ("state", found.state),
        ("producer", str(found.producer_id)),
        ("epoch", found.producer_epoch),
        ("coordinator", found.coordinator),
        ("timeout", f"{found.timeout_ms:,} ms"),
        ("began", _time(found.start_ms)),
        ("under way for", None if duration_ms is None else f"{duration_ms:,} ms"),
    ]
    print_table(None, facts, title=f"transactional id {transactional_id}")
    if found.partitions:
        print_table(("topic", "partition"), found.partitions)


# ---------------------------------------------------------------------- producers


def describe_producers(bootstrap: str, *, topics: Sequence[str], as_json: bool) -> None:
    chosen = partitions_by_topic(topics)

    async def work() -> dict[Place, list[ActiveProducer]]:
        async with ClusterClient(parse_addresses(bootstrap)) as client:
            return await transactions.describe_producers(client, await _partitions(client, chosen))

    described = run_async(work())
    _print_producers([producer for place in sorted(described) for producer in described[place]], as_json=as_json)


def find_hanging(bootstrap: str, *, topics: Sequence[str], as_json: bool) -> None:
    chosen = partitions_by_topic(topics)

    async def work() -> list[ActiveProducer]:
        async with ClusterClient(parse_addresses(bootstrap)) as client:
            wanted = chosen or {topic.name: [] for topic in await client.topics()}
            return await transactions.find_hanging(client, await _partitions(client, wanted))

    found = run_async(work())
    _print_producers(found, as_json=as_json)
    if not found:
        say("no transaction hangs")


def _print_producers(producers: Sequence[ActiveProducer], *, as_json: bool) -> None:
    if as_json:
        print_json({"producers": producers})
        return
    rows = [
        (
            row.topic,
            row.partition,
            str(row.producer_id),
            row.producer_epoch,
            row.coordinator_epoch,
            row.last_sequence,
            _time(row.last_timestamp_ms),
            row.start_offset,
        )
        for row in producers
    ]
    print_table(PRODUCER_COLUMNS, rows)


async def _partitions(client: ClusterClient, chosen: dict[str, list[int]]) -> dict[str, list[int]]:
    wanted: dict[str, list[int]] = {}
    for topic, numbers in chosen.items():
        count = len((await client.topic(topic)).partitions)
        for number in numbers:
            if number >= count:
                raise PartitionMissingError(topic, number, count)
        wanted[topic] = numbers or list(range(count))
    return wanted


# ---------------------------------------------------------------------- abort


def abort(
    bootstrap: str,
    place: Place,
    *,
    start_offset: int | None,
    producer_id: int | None,
    is_confirmed: bool,
    as_json: bool,
) -> None:
    if (start_offset is None) == (producer_id is None):
        raise CommandError("say which transaction: either --start-offset or --producer-id", exit_code=EXIT_USAGE)
    found = run_async(_find(bootstrap, place, start_offset=start_offset, producer_id=producer_id))
    topic, partition = place
    what = f"the transaction of producer {found.producer_id} in partition {partition} of {topic!r}"
    question = f"Abort {what}, which begins at offset {found.start_offset}?"
    confirm(question, is_confirmed=is_confirmed, refused="nothing was aborted")
    run_async(_abort(bootstrap, place, found))
    if as_json:
        print_json({"aborted": found})
    else:
        say(f"{what} is aborted")


async def _find(bootstrap: str, place: Place, *, start_offset: int | None, producer_id: int | None) -> ActiveProducer:
    topic, partition = place
    async with ClusterClient(parse_addresses(bootstrap)) as client:
        described = await transactions.describe_producers(client, {topic: [partition]})
        found = [
            producer
            for producer in described[place]
            if producer.start_offset is not None
            and (start_offset is None or producer.start_offset == start_offset)
            and (producer_id is None or producer.producer_id == producer_id)
        ]
        if not found:
            which = f"that begins at offset {start_offset}" if producer_id is None else f"of producer {producer_id}"
            raise CommandError(f"partition {partition} of {topic!r} has no open transaction {which}")
        await _refuse_looked_after(client, place, found[0])
    return found[0]


async def _refuse_looked_after(client: ClusterClient, place: Place, found: ActiveProducer) -> None:
    """A marker of ours would abort one part of a transaction whose producer may yet commit the rest."""
    for listed in await transactions.list_transactions(client, producer_ids=[found.producer_id]):
        info = await transactions.describe_transaction(client, listed.transactional_id)
        if place in info.partitions:
            raise CommandError(
                f"the transaction does not hang: node {info.coordinator} looks after it as "
                f"{info.transactional_id!r} ({info.state}) and ends it {info.timeout_ms:,} ms after its beginning"
            )


async def _abort(bootstrap: str, place: Place, found: ActiveProducer) -> None:
    async with ClusterClient(parse_addresses(bootstrap)) as client:
        await transactions.abort_transaction(
            client,
            place,
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            coordinator_epoch=max(NO_COORDINATOR_EPOCH, found.coordinator_epoch or 0),
        )


def _time(timestamp_ms: int | None) -> str | None:
    if timestamp_ms is None:
        return None
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")
