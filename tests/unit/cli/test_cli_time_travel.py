"""Reading as of a moment, between two of them, and snapshots, against a real node whose compaction never rests."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.cli.app import app, run
from support.client.command import Penstock, command
from support.node_process import NodeProcess

EAGER: Final = {"PENSTOCK_BROKER__CLEANER_CHECK_MS": "50", "PENSTOCK_BROKER__CHECKPOINT_MS": "50"}
NOON_MS: Final = 1_794_744_000_000
MINUTE_MS: Final = 60_000
WAIT_SECONDS_MAX: Final = 30.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("time"), environment=EAGER) as running:
        yield running


@pytest.fixture
def penstock(node: NodeProcess, capsys: pytest.CaptureFixture[str]) -> Penstock:
    return command(capsys, last=("--bootstrap", node.kafka))


def at(minute: int) -> str:
    return str(NOON_MS + minute * MINUTE_MS)


def create(node: NodeProcess, topic: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    settings = {name.replace("_", "."): value for name, value in config.items()}
    admin.create_topics([NewTopic(topic, partitions, config=settings)])[topic].result(20)


def produce(
    node: NodeProcess, topic: str, *rows: tuple[str | None, str | None, int], partition: int = 0, **settings: Any
) -> None:
    """(key, value, minute) each; one batch a call."""
    producer = Producer({"bootstrap.servers": node.kafka, "linger.ms": 5, **settings})
    for key, value, minute in rows:
        producer.produce(topic, value, key, partition=partition, timestamp=NOON_MS + minute * MINUTE_MS)
    assert producer.flush(20) == 0


@pytest.fixture(scope="module")
def unsorted(node: NodeProcess) -> str:
    """Two partitions; in the first one a record comes 30 minutes late, and one is from the far future."""
    create(node, "unsorted", 2)
    produce(node, "unsorted", (None, "a00", 0), (None, "a10", 10), (None, "a99", 600), (None, "a20", 20))
    produce(node, "unsorted", (None, "a40", 40), (None, "a12", 12), (None, "a50", 50))
    produce(node, "unsorted", (None, "b05", 5), (None, "b15", 15), (None, "b45", 45), partition=1)
    return "unsorted"


def values(found: tuple[int, str, str]) -> list[str]:
    code, out, err = found
    assert (code, err) == (0, "")
    return out.splitlines()


def test_at_begins_at_the_first_record_of_that_time_and_merges_partitions(penstock: Penstock, unsorted: str) -> None:
    # a20 stands behind a99, and so do the others: no record overtakes another of its partition.
    shown = values(penstock("consume", unsorted, "--at", at(10)))
    assert shown == ["a10", "b15", "b45", "a99", "a20", "a40", "a12", "a50"]
    assert values(penstock("consume", unsorted, "--at", at(10), "--count", "2")) == ["a10", "b15"]
    assert values(penstock("consume", unsorted, "--at", at(601))) == []


def test_at_and_follow_goes_on_after_the_end(penstock: Penstock, unsorted: str) -> None:
    assert min(values(penstock("consume", unsorted, "--at", at(10), "--follow", "-n", "8"))) == "a10"


def test_between_finds_records_wherever_they_stand(penstock: Penstock, unsorted: str) -> None:
    assert values(penstock("consume", unsorted, "--between", at(10), at(20))) == ["a10", "a12", "b15"]
    assert values(penstock("consume", unsorted, "--between", at(0), at(1))) == ["a00"]
    assert values(penstock("consume", unsorted, "--between", at(12), at(13), "-p", "0")) == ["a12"]
    assert values(penstock("consume", unsorted, "--between", at(700), at(800))) == []
    assert values(penstock("consume", unsorted, "--between", "-4000d", "-3999d")) == []


def test_between_stops_reading_where_lateness_is_promised(penstock: Penstock, unsorted: str) -> None:
    # The first record an hour after the window is a99: what stands behind it is not looked at.
    assert values(penstock("consume", unsorted, "--between", at(10), at(50), "--late-max", "1h", "-p", "0")) == ["a10"]


def rows_of(out: str) -> dict[str, tuple[int, str]]:
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["offset"] for row in rows] == sorted(row["offset"] for row in rows)
    return {row["key"]: (row["offset"], row["value"]) for row in rows}


def test_a_snapshot_is_the_last_value_of_each_key(node: NodeProcess, penstock: Penstock) -> None:
    create(node, "table")
    produce(node, "table", ("a", "1", 0), ("b", "1", 1), ("a", "2", 2), ("c", "1", 3), ("b", None, 4), ("a", "3", 5))
    assert rows_of(penstock("consume", "table", "--snapshot", "--json")[1]) == {"c": (3, "1"), "a": (5, "3")}
    as_of = penstock("consume", "table", "--snapshot", "--until-offset", "3", "--json")
    assert rows_of(as_of[1]) == {"b": (1, "1"), "a": (2, "2")}
    as_of = penstock("consume", "table", "--snapshot", "--at", at(4), "--json")
    assert rows_of(as_of[1]) == {"b": (1, "1"), "a": (2, "2"), "c": (3, "1")}
    assert penstock("consume", "table", "--snapshot", "--until-offset", "0") == (0, "", "")
    assert values(penstock("consume", "table", "--snapshot", "-n", "1", "--format", "%k=%v")) == ["c=1"]


def test_offsets_mean_one_partition_and_must_exist(penstock: Penstock, unsorted: str) -> None:
    code, _, err = penstock("consume", unsorted, "--snapshot", "--until-offset", "3")
    assert (code, err) == (2, "penstock: --until-offset means one partition's offset: name it with --partition\n")
    code, _, err = penstock("consume", unsorted, "--snapshot", "--until-offset", "30", "-p", "0")
    assert (code, err) == (1, "penstock: partition 0 of topic 'unsorted' has no offset 30: it ends at 7\n")


def test_records_without_a_key_are_told(penstock: Penstock, unsorted: str) -> None:
    found = penstock("consume", unsorted, "--snapshot", "-p", "1")
    assert found == (0, "", "partition 1: 3 records without a key are not shown\n")


def test_a_moment_before_what_compaction_kept_is_told(node: NodeProcess, penstock: Penstock) -> None:
    create(node, "compact", cleanup_policy="compact", min_cleanable_dirty_ratio="0", segment_bytes="1024")
    rows = [(f"key-{number % 10}", f"{number:0100d}", number) for number in range(100)]
    for start in range(0, 100, 5):
        produce(node, "compact", *rows[start : start + 5])
    _wait_until_cleaned(penstock, "compact")

    code, out, err = penstock("consume", "compact", "--snapshot", "--json")
    assert (code, err) == (0, "")
    assert {key: int(value) for key, (_, value) in rows_of(out).items()} == {f"key-{n}": 90 + n for n in range(10)}

    for words in (("--until-offset", "20"), ("--at", at(20))):
        code, out, err = penstock("consume", "compact", "--snapshot", *words, "--json")
        assert (code, out) == (0, "")
        assert re.match(r"partition 0: up to \d+ keys may have had a value then that is not shown: compaction has", err)
        assert "10 keys have only newer values now" in err


def _wait_until_cleaned(penstock: Penstock, topic: str) -> None:
    """Of the first 50 offsets nothing is left: each key is overwritten later."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while json.loads(penstock("consume", topic, "--json", "-n", "1")[1])["offset"] < 50:
        assert time.monotonic() < deadline, "the log was not cleaned"
        time.sleep(0.1)


def test_deleted_records_are_told(node: NodeProcess, penstock: Penstock, tmp_path: Path) -> None:
    from confluent_kafka import TopicPartition

    create(node, "short")
    produce(node, "short", ("a", "1", 0), ("b", "2", 1))
    admin = AdminClient({"bootstrap.servers": node.kafka})
    place = TopicPartition("short", 0, 1)
    admin.delete_records([place])[place].result(20)
    code, out, err = penstock("consume", "short", "--snapshot")
    assert (code, out) == (0, "2\n")
    assert err.startswith("partition 0: everything below offset 1 was deleted")


def test_describe_shows_watermarks_and_health(node: NodeProcess, penstock: Penstock) -> None:
    create(node, "well", 2)
    produce(node, "well", ("a", "1", 0), ("b", "2", 1))
    first, second = json.loads(penstock("topic", "describe", "well", "--json")[1])["partitions"]
    assert (first["start"], first["end"], first["last_stable"]) == (0, 2, 2)
    assert (second["start"], second["end"], second["last_stable"]) == (0, 0, 0)
    assert first["healthy"]
    assert (first["problems"], first["open_transactions"], first["offline"]) == ([], None, [])
    table = penstock("topic", "describe", "well")[1]
    assert all(name in table for name in ("low", "high", "stable", "health", "ok"))


@pytest.fixture(scope="module")
def ended_and_open(node: NodeProcess) -> Iterator[str]:
    """Offsets 0-1 committed, 2 the marker, 3-4 aborted, 5 the marker, 6 without a transaction, 7 still open."""
    create(node, "transactions")
    producer = Producer({"bootstrap.servers": node.kafka, "transactional.id": "time-travel"})
    producer.init_transactions(20)

    def write(*rows: tuple[str, str, int]) -> None:
        producer.begin_transaction()
        for key, value, minute in rows:
            producer.produce("transactions", value, key, partition=0, timestamp=NOON_MS + minute * MINUTE_MS)
        assert producer.flush(20) == 0

    write(("a", "1", 0), ("b", "1", 1))
    producer.commit_transaction(20)
    write(("a", "2", 2), ("c", "2", 3))
    producer.abort_transaction(20)
    produce(node, "transactions", ("b", "3", 4))
    write(("a", "4", 5))
    yield "transactions"
    producer.abort_transaction(20)


def test_readers_of_committed_records_see_neither_aborted_nor_open_ones(
    penstock: Penstock, ended_and_open: str
) -> None:
    committed = ("consume", ended_and_open, "--isolation", "read_committed", "--format", "%k%v")
    assert values(penstock(*committed)) == ["a1", "b1", "b3"]
    assert values(penstock(*committed, "--at", at(1))) == ["b1", "b3"]
    assert values(penstock(*committed, "--between", at(1), at(4))) == ["b1"]
    assert values(penstock(*committed, "--snapshot")) == ["a1", "b3"]
    assert values(penstock("consume", ended_and_open, "--format", "%k%v", "--snapshot")) == ["c2", "b3", "a4"]
    assert values(penstock("consume", ended_and_open, "--read-committed", "-n", "1")) == ["1"]


def test_describe_names_the_transaction_that_holds_readers_back(penstock: Penstock, ended_and_open: str) -> None:
    (found,) = json.loads(penstock("topic", "describe", ended_and_open, "--json")[1])["partitions"]
    assert (found["start"], found["last_stable"], found["end"]) == (0, 7, 8)
    assert (found["open_transactions"]["count"], found["open_transactions"]["oldest_start"]) == (1, 7)
    assert found["healthy"]
    shown = penstock("topic", "describe", ended_and_open)[1]
    assert "ok, 1 offset not stable: 1 open transaction since offset 7" in shown


def test_describe_tells_of_a_damaged_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with NodeProcess(tmp_path) as node:
        create(node, "broken", 2)
        for number in range(3):
            produce(node, "broken", ("a", str(number), number))
        node.kill()
        log_file = max(node.data_directory.rglob("*.log"), key=lambda file: file.stat().st_size)
        data = bytearray(log_file.read_bytes())
        data[65] ^= 0xFF
        log_file.write_bytes(data)
        node.start()
        capsys.readouterr()
        assert run(app, ["topic", "describe", "broken", "--json", "--bootstrap", node.kafka]) == 0
        first, second = json.loads(capsys.readouterr().out)["partitions"]
        assert (first["healthy"], first["problems"]) == (False, ["offset 0 is damaged"])
        assert second["healthy"]
        assert run(app, ["topic", "describe", "broken", "--bootstrap", node.kafka]) == 0
        assert "offset 0 is damaged" in capsys.readouterr().out
