"""`penstock replay`: chosen messages once more, in order, each exactly once, also when it is stopped and goes on."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql", reason="the extra `spark` is not installed")

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.cli.work.replay import ReplayWish, dry_run, run
from penstock.pipeline.replay.pace import Pace
from penstock.pipeline.replay.send import ReplayTarget, replayed_below, send_rows
from support.node_process import NodeProcess

SECONDS_MAX = 180
ROWS = 300
BASE_MS = 1_760_000_000_000


def create(node: NodeProcess, topic: str, partitions: int = 2) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic(topic, partitions, config={"retention.ms": "-1"})])[topic].result(20)


@pytest.fixture(scope="module")
def source(spark_node: NodeProcess) -> str:
    """Ten keys, a message every ten milliseconds."""
    create(spark_node, "replayed")
    producer = Producer({"bootstrap.servers": spark_node.kafka})
    for number in range(ROWS):
        value = json.dumps({"id": number, "amount": number * 1.5}).encode()
        producer.produce(
            "replayed", value, f"k{number % 10}".encode(), number % 2,
            timestamp=BASE_MS + number * 10, headers=[("number", str(number).encode())],
        )  # fmt: skip
    assert producer.flush(30) == 0
    return "replayed"


def read_all(node: NodeProcess, topic: str, count: int) -> list[Message]:
    """Committed ones, in the order of their partitions."""
    consumer = Consumer({
        "bootstrap.servers": node.kafka, "group.id": "unused", "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
    })  # fmt: skip
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(2)])
    found: list[Message] = []
    deadline = time.monotonic() + SECONDS_MAX
    while len(found) < count and time.monotonic() < deadline:
        found += [message for message in consumer.consume(500, 0.2) if message.error() is None]
    # Whatever should not be there would come now.
    found += [message for message in consumer.consume(500, 0.3) if message.error() is None]
    consumer.close()
    return found


def numbers(messages: list[Message]) -> list[int]:
    return [int(json.loads(message.value())["id"]) for message in messages]


def test_a_part_of_a_topic_is_replayed_in_order_with_its_origin(
    spark: Any, spark_node: NodeProcess, source: str
) -> None:
    create(spark_node, "replayed-part")
    wanted = ReplayWish(
        bootstrap=spark_node.kafka, topic=source, target="replayed-part", since=str(BASE_MS + 1000),
        to_offset=140, where="json:amount::double < 300 AND headers['number'] <> '150'",
    )  # fmt: skip
    chosen = [number for number in range(100, 200) if number != 150]
    counted = dry_run(spark, wanted)
    assert sum(each.count for each in counted) == len(chosen)
    assert [(each.first_offset, each.last_offset) for each in counted] == [(50, 99), (50, 99)]
    assert run(spark, wanted, Pace()).replayed_count == len(chosen)
    found = read_all(spark_node, "replayed-part", len(chosen))
    assert sorted(numbers(found)) == chosen
    for key in {message.key() for message in found}:
        of_key = numbers([message for message in found if message.key() == key])
        assert of_key == sorted(of_key), "the order of a key is kept"
    first = found[0]
    number = numbers([first])[0]
    headers = {name: value.decode() for name, value in first.headers()}
    assert headers == {
        "number": str(number), "penstock-origin-topic": source, "penstock-origin-partition": str(number % 2),
        "penstock-origin-offset": str(number // 2), "penstock-origin-timestamp": str(BASE_MS + number * 10),
    }  # fmt: skip


def test_a_replay_that_was_stopped_goes_on_under_its_name(
    spark: Any, spark_node: NodeProcess, source: str, tmp_path: Path
) -> None:
    from penstock.cli.work.replay import _range
    from penstock.pipeline.replay.rows import chosen_rows, lay_down, rows_in

    create(spark_node, "replayed-on")
    wanted = ReplayWish(
        bootstrap=spark_node.kafka, topic=source, target="replayed-on", name="again", keeps_partition=True
    )
    count = lay_down(chosen_rows(spark, _range(wanted), where=None, key=None, done={}), tmp_path)
    assert count == ROWS
    target = ReplayTarget(spark_node.kafka, "replayed-on", "again", Pace(rows_per_second=1000), True)

    def stop_early(done: int) -> None:
        if done >= ROWS // 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(send_rows(target, rows_in(tmp_path), stop_early))
    done = asyncio.run(replayed_below(spark_node.kafka, "again", source))
    sent = sum(done.values())
    assert ROWS // 3 <= sent < ROWS
    assert run(spark, wanted, Pace()).replayed_count == ROWS - sent
    found = read_all(spark_node, "replayed-on", ROWS)
    assert sorted(numbers(found)) == list(range(ROWS))
    for partition in range(2):
        of_partition = numbers([message for message in found if message.partition() == partition])
        assert of_partition == list(range(partition, ROWS, 2))
    assert run(spark, wanted, Pace()).replayed_count == 0


def laid_down() -> Any:
    """A hundred rows, as Spark would have laid them down."""
    import polars as pl

    headers = pl.Series("headers", [[]] * 100, dtype=pl.List(pl.Struct({"key": pl.String, "value": pl.Binary})))
    return pl.DataFrame({
        "topic": ["replayed"] * 100, "partition": [0] * 100, "offset": list(range(100)),
        "due_ms": [BASE_MS + number * 20 for number in range(100)],
        "key": [b"k"] * 100, "value": [f'{{"id": {number}}}'.encode() for number in range(100)],
    }).with_columns(headers)  # fmt: skip


@pytest.mark.usefixtures("source")
async def test_of_two_replays_of_one_name_the_second_leaves_out_what_the_first_has_sent(
    spark_node: NodeProcess,
) -> None:
    """Also what it has sent after the second one looked how far the first is, and before it took over."""
    await asyncio.to_thread(create, spark_node, "taken-over")
    target = ReplayTarget(spark_node.kafka, "taken-over", "taken-over", Pace())
    frame = laid_down()
    assert await send_rows(target, [frame[:60]], lambda _: None) == 60
    assert await send_rows(target, [frame[:50], frame[50:]], lambda _: None) == 40
    found = await asyncio.to_thread(read_all, spark_node, "taken-over", 100)
    assert sorted(numbers(found)) == list(range(100))


@pytest.mark.usefixtures("source")
async def test_a_replay_keeps_its_pace(spark_node: NodeProcess) -> None:
    create(spark_node, "paced")
    frame = laid_down()
    for pace in (Pace(rows_per_second=100), Pace(speed=2)):
        began = time.monotonic()
        target = ReplayTarget(spark_node.kafka, "paced", f"paced-{pace.speed}", pace)
        assert await send_rows(target, [frame], lambda _: None) == 100
        # The last tick of a second begins at 0.8 s.
        assert time.monotonic() - began >= 0.8
