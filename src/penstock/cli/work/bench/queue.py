"""`penstock bench queue`: messages that are received and acknowledged one by one, through each of the doors.

    machine     the queue's rules alone, without disk or wire
    share       a Kafka share group: fetch and accept in batches, every acceptance durable before it is answered
    http        send, then receive and ack, in batches, every one durable before it is answered
    sqs         receive in tens, from single-record batches and from large compressed ones, and the ratio of the two

The load comes from this process, the work is the node's: beside the rates stands what its processor spent on a message.
Each part makes topics of its own and deletes them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter
from typing import Final

import msgspec

from penstock.cli.output import print_json, print_table, run_async
from penstock.cli.progress import BenchProgress
from penstock.cli.work.bench.http import BenchConnection
from penstock.cli.work.bench.load import payload
from penstock.cli.work.bench.plan import BenchPlan
from penstock.cli.work.bench.processor import BrokerProcessor, ProcessorTime, together
from penstock.cli.work.bench.produce import fill
from penstock.cli.work.bench.queue_machine import bench_machine
from penstock.cli.work.bench.share import accept_all, share_members
from penstock.client.kafka import admin
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.net.address import parse_addresses

MACHINE_GOAL: Final = 200_000
SHARE_GOAL: Final = 50_000
HTTP_GOAL: Final = 50_000
RATIO_GOAL: Final = 0.7
SQS_BATCH: Final = 10
# A batch of 10,000 records of this size is about 1 MB before compression.
SQS_VALUE_BYTES: Final = 100
LARGE_BATCH: Final = 10_000
_LEASE_SECONDS: Final = 3_600
_SQS_HEADERS: Final = "Content-Type: application/x-amz-json-1.0\r\nx-amz-target: AmazonSQS.{action}\r\n"


class QueueBenchPlan(msgspec.Struct, frozen=True):
    bootstrap: str
    http: str
    messages: int
    machine_messages: int
    sqs_messages: int
    size_bytes: int
    batch: int
    connections: int
    partitions: int
    parts: tuple[str, ...]
    is_json: bool


class QueueBenchOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    machine_messages_per_second: float | None = None
    share_messages_per_second: float | None = None
    share_processor: ProcessorTime | None = None
    http_send_messages_per_second: float | None = None
    http_messages_per_second: float | None = None
    http_processor: ProcessorTime | None = None
    sqs_single_messages_per_second: float | None = None
    sqs_large_messages_per_second: float | None = None
    # Large batches over single ones: near 1, a batch is decoded once and not for every ten messages.
    sqs_ratio: float | None = None
    # Of receiving alone.
    sqs_single_receive_us: float | None = None
    sqs_large_receive_us: float | None = None


class _Rates(msgspec.Struct, frozen=True):
    """Messages a second, and microseconds of the node's processor for each of them."""

    receive_per_second: float
    send_per_second: float | None = None
    send_us: float | None = None
    receive_us: float | None = None


class _Delivered(msgspec.Struct):
    receipt: str


class _Reply(msgspec.Struct):
    messages: list[_Delivered]


class _SqsReply(msgspec.Struct, rename="pascal"):
    messages: list[msgspec.Raw] = []


_decode_reply: Final = msgspec.json.Decoder(_Reply).decode
_decode_sqs_reply: Final = msgspec.json.Decoder(_SqsReply).decode


Worker = Callable[[BenchConnection], Awaitable[int]]


def bench_queue(plan: QueueBenchPlan) -> None:
    outcome = QueueBenchOutcome()
    if "machine" in plan.parts:
        rate = bench_machine(plan.machine_messages, plan.batch)
        outcome = msgspec.structs.replace(outcome, machine_messages_per_second=round(rate))
    if {"share", "http", "sqs"} & set(plan.parts):
        outcome = run_async(_bench_doors(plan, outcome))
    if plan.is_json:
        print_json(outcome)
    else:
        print_table(None, _rows(outcome, plan), title="bench queue")


async def _bench_doors(plan: QueueBenchPlan, outcome: QueueBenchOutcome) -> QueueBenchOutcome:
    processor = BrokerProcessor(plan.http)
    async with ClusterClient(parse_addresses(plan.bootstrap)) as client:
        if "share" in plan.parts:
            rates = await _bench_share(client, plan, processor)
            outcome = msgspec.structs.replace(
                outcome,
                share_messages_per_second=round(rates.receive_per_second),
                share_processor=together(rates.send_us, rates.receive_us),
            )
        if "http" in plan.parts:
            rates = await _bench_http(client, plan, processor)
            outcome = msgspec.structs.replace(
                outcome,
                http_send_messages_per_second=round(rates.send_per_second or 0),
                http_messages_per_second=round(rates.receive_per_second),
                http_processor=together(rates.send_us, rates.receive_us),
            )
        if "sqs" in plan.parts:
            single = await _bench_sqs(client, plan, processor, per_batch=1)
            large = await _bench_sqs(client, plan, processor, per_batch=LARGE_BATCH)
            outcome = msgspec.structs.replace(
                outcome,
                sqs_single_messages_per_second=round(single.receive_per_second),
                sqs_large_messages_per_second=round(large.receive_per_second),
                sqs_ratio=round(large.receive_per_second / single.receive_per_second, 3),
                sqs_single_receive_us=single.receive_us,
                sqs_large_receive_us=large.receive_us,
            )
    return outcome


# Share groups


async def _bench_share(client: ClusterClient, plan: QueueBenchPlan, processor: BrokerProcessor) -> _Rates:
    name = f"penstock-bench-share-{os.getpid()}"

    async def fill_topic() -> None:
        # A member takes whole batches.
        await _fill(
            client, plan, name, plan.messages, size_bytes=plan.size_bytes, per_batch=plan.batch, compression="none"
        )

    await admin.create_topic(client, name, partitions=plan.partitions, configs={"durability": "fsync"})
    try:
        async with share_members(plan.bootstrap, name, batch=plan.batch, connections=plan.connections) as members:
            _, send_us = await processor.measure(plan.messages, fill_topic)
            rate, receive_us = await processor.measure(plan.messages, partial(accept_all, members, plan.messages))
        return _Rates(rate, send_us=send_us, receive_us=receive_us)
    finally:
        await admin.delete_topics(client, [name])


# HTTP


async def _bench_http(client: ClusterClient, plan: QueueBenchPlan, processor: BrokerProcessor) -> _Rates:
    name = f"penstock-bench-queue-{os.getpid()}"
    path = f"/v1/queues/{name}/bench"
    asked = msgspec.json.encode({"count": plan.batch, "lease_ms": _LEASE_SECONDS * 1000})
    message = {"value": payload(plan.size_bytes, 1).decode()}
    whole, rest = divmod(plan.messages, plan.batch)
    counts = iter([plan.batch] * whole + [rest])
    bodies = {count: msgspec.json.encode({"messages": [message] * count}) for count in (plan.batch, rest)}

    async def send(connection: BenchConnection) -> int:
        if not (count := next(counts, 0)):
            return 0
        await connection.send("POST", f"/v1/topics/{name}/messages", bodies[count])
        return count

    async def work(connection: BenchConnection) -> int:
        reply = _decode_reply(await connection.send("POST", f"{path}/receive", asked))
        if not reply.messages:
            return 0
        receipts = [message.receipt for message in reply.messages]
        await connection.send("POST", f"{path}/ack", msgspec.json.encode({"receipts": receipts}))
        return len(receipts)

    await admin.create_topic(client, name, partitions=plan.partitions, configs={"durability": "fsync"})
    try:
        connection = await BenchConnection.open(plan.http)
        await connection.send("PUT", path, b"{}")
        connection.close()
        total = plan.messages
        sent, send_us = await processor.measure(total, partial(_load, "send over HTTP", plan, total, send))
        received, receive_us = await processor.measure(total, partial(_load, "queue over HTTP", plan, total, work))
        return _Rates(received, sent, send_us, receive_us)
    finally:
        await admin.delete_topics(client, [name])


# SQS


async def _bench_sqs(
    client: ClusterClient, plan: QueueBenchPlan, processor: BrokerProcessor, *, per_batch: int
) -> _Rates:
    name = f"penstock-bench-sqs-{per_batch}-{os.getpid()}"
    url = f"http://{plan.http}/000000000000/{name}"
    asked = msgspec.json.encode(
        {"QueueUrl": url, "MaxNumberOfMessages": SQS_BATCH, "VisibilityTimeout": _LEASE_SECONDS}
    )
    headers = _SQS_HEADERS.format(action="ReceiveMessage")

    async def work(connection: BenchConnection) -> int:
        return len(_decode_sqs_reply(await connection.send("POST", "/", asked, headers=headers)).messages)

    await admin.create_topic(client, name, partitions=plan.partitions, configs={"durability": "fsync"})
    try:
        # Before there is anything in it: an SQS queue on a topic that has messages begins at its end.
        connection = await BenchConnection.open(plan.http)
        made = msgspec.json.encode({"QueueName": name})
        await connection.send("POST", "/", made, headers=_SQS_HEADERS.format(action="CreateQueue"))
        connection.close()
        compression = "none" if per_batch == 1 else "zstd"
        await _fill(
            client,
            plan,
            name,
            plan.sqs_messages,
            size_bytes=SQS_VALUE_BYTES,
            per_batch=per_batch,
            compression=compression,
        )
        total = plan.sqs_messages
        load = partial(_load, f"SQS, batches of {per_batch:,}", plan, total, work)
        rate, receive_us = await processor.measure(total, load)
        return _Rates(rate, receive_us=receive_us)
    finally:
        await admin.delete_topics(client, [name])


# Both


async def _fill(
    client: ClusterClient,
    plan: QueueBenchPlan,
    name: str,
    messages: int,
    *,
    size_bytes: int,
    per_batch: int,
    compression: str,
) -> None:
    topic = await client.topic(name, is_fresh=True)
    produce = BenchPlan(
        bootstrap=plan.bootstrap,
        topic=name,
        partitions=plan.partitions,
        messages=messages,
        size_bytes=size_bytes,
        compression=compression,
        is_kept=True,
        is_json=plan.is_json,
        # Room for exactly so many, as `messages_per_batch` counts.
        batch_bytes=61 + per_batch * (size_bytes + 10),
        in_flight_max=64 if per_batch == 1 else 8,
    )
    await fill(client, topic, produce, title="fill")


async def _load(title: str, plan: QueueBenchPlan, total: int, work: Worker) -> float:
    """Messages a second, until all of them have come."""
    connections = [await BenchConnection.open(plan.http) for _ in range(plan.connections)]
    done = 0
    began = perf_counter()

    async def run(connection: BenchConnection) -> None:
        nonlocal done
        while done < total and (count := await work(connection)):
            done += count
            progress.update(done, f"{done / max(perf_counter() - began, 0.001):,.0f} msg/s")

    with BenchProgress(title, float(total)) as progress:
        async with asyncio.TaskGroup() as workers:
            for connection in connections:
                workers.create_task(run(connection))
    seconds = perf_counter() - began
    for connection in connections:
        connection.close()
    assert done >= total, f"{done} of {total} messages came"
    return done / max(seconds, 0.000_001)


# Report


def _rows(outcome: QueueBenchOutcome, plan: QueueBenchPlan) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    if outcome.machine_messages_per_second is not None:
        rows.append(("machine alone", _rate(outcome.machine_messages_per_second, MACHINE_GOAL)))
    if outcome.share_messages_per_second is not None:
        text = _rate(outcome.share_messages_per_second, SHARE_GOAL)
        rows.append((f"share group, batches of {plan.batch}", f"{text}, every acceptance durable"))
        rows += _processor_rows(outcome.share_processor, "receive + accept")
    if outcome.http_messages_per_second is not None:
        text = _rate(outcome.http_messages_per_second, HTTP_GOAL)
        rows.append((f"HTTP, batches of {plan.batch}", f"{text}, every ack durable"))
        rows.append(("  sent", f"{outcome.http_send_messages_per_second or 0:,.0f} msg/s, every one durable"))
        rows += _processor_rows(outcome.http_processor, "receive + ack")
    if outcome.sqs_ratio is not None:
        single, large = outcome.sqs_single_messages_per_second or 0, outcome.sqs_large_messages_per_second or 0
        rows.append(("SQS, single-record batches", f"{single:,.0f} msg/s{_spent(outcome.sqs_single_receive_us)}"))
        rows.append((f"SQS, batches of {LARGE_BATCH:,}", f"{large:,.0f} msg/s{_spent(outcome.sqs_large_receive_us)}"))
        rows.append(("large / single", f"{outcome.sqs_ratio:.2f} (goal {RATIO_GOAL})"))
    return rows


def _processor_rows(processor: ProcessorTime | None, received: str) -> list[tuple[str, str]]:
    if processor is None:
        return [("  broker CPU per message", "not known: the node's HTTP door does not tell it")]
    text = f"send {processor.send_us} µs, {received} {processor.receive_ack_us} µs, whole {processor.whole_us} µs"
    return [("  broker CPU per message", text)]


def _spent(receive_us: float | None) -> str:
    return "" if receive_us is None else f", broker CPU per message {receive_us} µs"


def _rate(rate: float, goal: int) -> str:
    return f"{rate:,.0f} msg/s received and acked ({rate / goal:.2f} of the goal of {goal:,})"
