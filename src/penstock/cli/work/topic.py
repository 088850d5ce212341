"""What the topic commands do; `describe` is in topic_describe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.cli.confirmation import confirm
from penstock.cli.failure import EXIT_USAGE, CommandError
from penstock.cli.output import print_json, print_table, run_async, say
from penstock.client.errors import TopicMissingError
from penstock.client.kafka import admin
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.offsets import offset_ranges
from penstock.codec.kafka import ErrorCode
from penstock.net.address import parse_addresses
from penstock.net.errors import BrokerError


def list_topics(bootstrap: str, *, with_internal: bool, as_json: bool) -> None:
    rows = run_async(_list_topics(bootstrap, with_internal=with_internal))
    if as_json:
        print_json({"topics": rows})
        return
    if not rows:
        say("there are no topics")
        return
    columns = ("topic", "partitions", "offsets", "internal")
    print_table(columns, [(row["name"], row["partitions"], row["offsets"], row["internal"]) for row in rows])


async def _list_topics(bootstrap: str, *, with_internal: bool) -> list[dict[str, object]]:
    async with ClusterClient(parse_addresses(bootstrap)) as client:
        rows: list[dict[str, object]] = []
        for topic in await client.topics():
            if topic.is_internal and not with_internal:
                continue
            ranges = await offset_ranges(client, topic.name, range(len(topic.partitions)))
            rows.append({
                "name": topic.name,
                "partitions": len(topic.partitions),
                "offsets": sum(found.end - found.start for found in ranges.values()),
                "internal": topic.is_internal,
            })  # fmt: skip
        return rows


def create(
    bootstrap: str,
    topic: str,
    *,
    partitions: int,
    replication: int,
    configs: Mapping[str, str],
    if_not_exists: bool,
    as_json: bool,
) -> None:
    if partitions == 0 or partitions < -1:
        raise CommandError(f"a topic cannot have {partitions} partitions", exit_code=EXIT_USAGE)
    if replication == 0 or replication < -1:
        raise CommandError(f"a partition cannot have {replication} replicas", exit_code=EXIT_USAGE)

    async def work() -> bool:
        async with ClusterClient(parse_addresses(bootstrap)) as client:
            try:
                await admin.create_topic(client, topic, partitions=partitions, replication=replication, configs=configs)
            except BrokerError as error:
                if error.code == ErrorCode.TOPIC_ALREADY_EXISTS and if_not_exists:
                    return False
                raise
            return True

    is_created = run_async(work())
    if as_json:
        print_json({"topic": topic, "is_created": is_created})
    else:
        say(f"topic {topic!r} " + ("created" if is_created else "exists already"))


def alter(
    bootstrap: str,
    topic: str,
    *,
    changes: Mapping[str, str],
    removals: Sequence[str],
    partitions: int | None,
    as_json: bool,
) -> None:
    if not changes and not removals and partitions is None:
        raise CommandError("nothing to change: give --config, --delete-config or --partitions", exit_code=EXIT_USAGE)

    async def work() -> None:
        async with ClusterClient(parse_addresses(bootstrap)) as client:
            await client.topic(topic)
            if changes or removals:
                await admin.alter_topic_configs(client, topic, changes=changes, removals=removals)
            if partitions is not None:
                await admin.create_partitions(client, topic, count=partitions)

    run_async(work())
    if as_json:
        print_json({"topic": topic, "changed": changes, "removed": removals, "partitions": partitions})
    else:
        say(f"topic {topic!r} changed")


def delete(bootstrap: str, topics: Sequence[str], *, is_confirmed: bool, as_json: bool) -> None:
    names = list(dict.fromkeys(topics))
    deleted: list[str] = []
    question = f"Delete {', '.join(names)} with everything in it?"
    confirm(question, is_confirmed=is_confirmed, refused="nothing was deleted")

    async def work() -> list[str]:
        missing: list[str] = []
        async with ClusterClient(parse_addresses(bootstrap)) as client:
            # One by one: the first refusal must not hide what became of the others.
            for name in names:
                try:
                    await admin.delete_topics(client, [name])
                    deleted.append(name)
                    if not as_json:
                        say(f"topic {name!r} deleted")
                except TopicMissingError:
                    missing.append(name)
        return missing

    try:
        missing = run_async(work())
    finally:
        # Of a failure too: those before it are gone.
        if as_json and deleted:
            print_json({"deleted": deleted})
    if missing:
        raise CommandError("; ".join(str(TopicMissingError(name)) for name in missing))
