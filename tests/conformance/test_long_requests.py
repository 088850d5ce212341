"""The longest requests that a node is sent, and the longest that it takes: they cost it little, or leave the loop to
others while they are worked through."""

from __future__ import annotations

import http.client
import json
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from penstock.codec import kafka as wire
from penstock.codec.kafka.messages import create_topics as ct
from penstock.codec.kafka.messages import fetch as f
from penstock.codec.kafka.messages import join_group as jg
from penstock.codec.kafka.messages import offset_commit as oc
from penstock.codec.kafka.messages import produce as p
from penstock.codec.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from support.door.raw_kafka import METADATA_VERSION, RawConnection, create_by_asking
from support.node_process import NodeProcess

# What a stranger's request may cost that is refused. Before there were bounds it was seconds.
REFUSED_CPU_SECONDS_MAX = 0.35
MANY = 490_000
PARTITIONS = 6_000


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("busy"), has_http=True, memory=True) as running:
        with RawConnection(running, timeout_seconds=60) as first:
            create_by_asking(first, "orders")
            topic = ct.CreatableTopic("wide", num_partitions=PARTITIONS, replication_factor=1)
            made = first.ask(ct.CreateTopicsRequest(topics=(topic,), timeout_ms=60_000), ct.CreateTopicsResponse, 5)
            assert made.topics[0].error_code == wire.ErrorCode.NONE, made.topics[0].error_message
        yield running


def array(count: int, data: bytes) -> bytes:
    return struct.pack(">i", count) + data


def text(value: bytes) -> bytes:
    return struct.pack(">h", len(value)) + value


COMMIT = text(b"g") + struct.pack(">i", -1) + text(b"") + struct.pack(">q", -1)
HOSTILE = {
    "Metadata of the same name": (3, 4, array(MANY, b"\0\1a" * MANY) + b"\0"),
    "Fetch": (
        1, 4,
        struct.pack(">iiiib", -1, 100, 1, 1 << 20, 0)
        + array(1, text(b"orders") + array(MANY, struct.pack(">iqi", 0, 0, 1 << 20) * MANY)),
    ),
    "OffsetCommit": (8, 2, COMMIT + array(1, text(b"orders") + array(MANY, (bytes(12) + text(b"")) * MANY))),
    "CreateTopics": (19, 2, array(MANY, (text(b"a/b") + bytes(14)) * MANY) + bytes(5)),
    "Produce": (
        0, 3, struct.pack(">hhi", -1, -1, 1_000) + array(1, text(b"orders") + array(MANY, bytes(8) * MANY))
    ),
    "JoinGroup of 40 MB": (11, 2, bytes(40 * 1024 * 1024)),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_request_that_names_too_much_costs_little(busy: NodeProcess, name: str) -> None:
    key, version, body = HOSTILE[name]
    frame = struct.pack(">hhih", key, version, 1, -1) + body
    before = busy.cpu_seconds()
    with RawConnection(busy, timeout_seconds=30) as hostile:
        try:
            hostile.send_bytes(struct.pack(">i", len(frame)) + frame)
            hostile.receive_frame()
        except OSError:
            pass  # it hangs up before all of it is sent
    with RawConnection(busy) as bystander:
        bystander.ask(MetadataRequest(topics=()), MetadataResponse, METADATA_VERSION)
    assert busy.cpu_seconds() - before < REFUSED_CPU_SECONDS_MAX
    assert "Traceback" not in busy.log_text()


def test_a_body_of_very_many_messages_costs_little(busy: NodeProcess) -> None:
    body = json.dumps({"messages": [{"value": "x"}] * 900_000})
    before = busy.cpu_seconds()
    connection = http.client.HTTPConnection(busy.http, timeout=30)
    connection.request("POST", "/v1/topics/orders/messages", body, {"content-type": "application/json"})
    assert connection.getresponse().status == 413
    connection.close()
    assert busy.cpu_seconds() - before < 2 * REFUSED_CPU_SECONDS_MAX


def longest() -> list[tuple[wire.Request, type[wire.Response], int]]:
    """What a client with all partitions of a large topic sends."""
    numbers = range(PARTITIONS)
    wanted = tuple(f.FetchPartition(partition=number, partition_max_bytes=1 << 20) for number in numbers)
    offsets = tuple(oc.OffsetCommitRequestPartition(number, 0) for number in numbers)
    data = tuple(p.PartitionProduceData(number, None) for number in numbers)
    names = tuple(MetadataRequestTopic(name=f"missing-{number}") for number in range(20_000))
    return [
        (f.FetchRequest(topics=(f.FetchTopic("wide", partitions=wanted),)), f.FetchResponse, 12),
        (
            oc.OffsetCommitRequest(group_id="g", topics=(oc.OffsetCommitRequestTopic("wide", partitions=offsets),)),
            oc.OffsetCommitResponse,
            8,
        ),
        (
            p.ProduceRequest(acks=-1, topic_data=(p.TopicProduceData("wide", partition_data=data),)),
            p.ProduceResponse,
            9,
        ),
        (MetadataRequest(topics=names, allow_auto_topic_creation=False), MetadataResponse, METADATA_VERSION),
    ]


def test_others_are_answered_many_times_while_a_long_request_is_worked_through(busy: NodeProcess) -> None:
    """Counted, not timed: a busy machine slows both down alike. At once, each would be answered in one piece."""
    for request, kind, version in longest():
        done = threading.Event()

        def ask(request: wire.Request = request, kind: type[wire.Response] = kind, version: int = version) -> None:
            with RawConnection(busy, timeout_seconds=60) as long:
                for _ in range(5):
                    long.ask(request, kind, version)
            done.set()  # noqa: B023

        before, answered = busy.cpu_seconds(), 0
        asking = threading.Thread(target=ask)
        asking.start()
        longest_cpu = 0.0
        with RawConnection(busy, timeout_seconds=60) as bystander:
            while not done.is_set():
                began = busy.cpu_seconds()
                bystander.ask(MetadataRequest(topics=()), MetadataResponse, METADATA_VERSION)
                longest_cpu = max(longest_cpu, busy.cpu_seconds() - began)
                answered += 1
                time.sleep(0)
        asking.join()
        assert longest_cpu <= 0.1, f"{type(request).__name__}: the node worked for {longest_cpu} s before it answered"
        assert answered > 10, f"{type(request).__name__}: {answered} answers in {busy.cpu_seconds() - before} s"


def test_a_member_that_brings_megabytes_is_told_so(busy: NodeProcess) -> None:
    protocol = jg.JoinGroupRequestProtocol("range", bytes(2 * 1024 * 1024))
    request = jg.JoinGroupRequest(
        group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=10_000, protocol_type="consumer",
        protocols=(protocol,),
    )  # fmt: skip
    with RawConnection(busy) as connection:
        assert connection.ask(request, jg.JoinGroupResponse, 3).error_code == wire.ErrorCode.INVALID_REQUEST
