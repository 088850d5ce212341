"""The data pipeline: orders from a Kafka client, joined and aggregated in Spark SQL, read back, archived, reported on.

Every step but the first and the reading is a `penstock` command, as a person would type it.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import boto3
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from penstock.base.clock import SystemClock

PIPELINES: Final = Path(__file__).parent / "pipelines" / "orders.yaml"
REPORT: Final = Path("build/demo/orders.html")
ORDERS: Final = 50_000
BROKEN: Final = 5
CUSTOMERS: Final = 200
COUNTRIES: Final = ("Argentina", "France", "Germany", "India", "Japan", "Kenya")
SECONDS_MAX: Final = 120.0


def show_pipeline(kafka: str, http: str, directory: str, console: Console) -> None:
    console.print(f"[bold]pipeline[/bold] {ORDERS:,} orders, {BROKEN} of them no JSON, and {CUSTOMERS} customers")
    large = _produce(kafka)
    home = {"PENSTOCK_BOOTSTRAP": kafka, "PENSTOCK_HTTP": http, "XDG_STATE_HOME": f"{directory}/state"}
    _run(console, home, "pipeline", "run", str(PIPELINES), "--once")
    _show_revenue(kafka, console)
    _show_large_orders(http, large, console)
    archive = f"{directory}/archive"
    _run(console, home, "archive", "run", "orders", "--to", archive, "--once")
    sql = "SELECT date_trunc('minute', timestamp) AS minute, count(*) AS orders FROM orders GROUP BY 1 ORDER BY 1"
    _run(console, home, "query", sql, "--archive", archive, is_shown=True)
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    _run(console, home, "report", "orders", "--output", str(REPORT))
    console.print(f"[bold]report[/bold]   {REPORT} has pictures: open it in a browser")


def _produce(kafka: str) -> int:
    """How many orders are large."""
    chance = random.Random(7)  # noqa: S311  a demo
    admin = AdminClient({"bootstrap.servers": kafka})
    topics = [NewTopic("orders", 4), NewTopic("customers", 1, config={"cleanup.policy": "compact"})]
    for made in admin.create_topics(topics).values():
        made.result(SECONDS_MAX)
    producer = Producer({"bootstrap.servers": kafka, "compression.type": "zstd", "linger.ms": 20})
    for number in range(CUSTOMERS):
        customer = {"customer_id": f"c{number}", "name": f"Customer {number}", "country": chance.choice(COUNTRIES)}
        producer.produce("customers", json.dumps(customer), key=f"c{number}")
    now = SystemClock().now_ms() / 1000
    large = 0
    for number in range(ORDERS):
        amount = round(chance.lognormvariate(4, 1.2), 2)
        large += amount >= 1000
        ordered = now - 300 + 300 * number / ORDERS
        order = {
            "order_id": f"o{number}",
            # Some customers order more than others.
            "customer_id": f"c{int(chance.paretovariate(1.1)) % CUSTOMERS}",
            "amount": max(amount, 0.01),
            "ordered_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ordered)),
        }
        value = "this is no order" if number % (ORDERS // BROKEN) == 77 else json.dumps(order)
        large -= value == "this is no order" and amount >= 1000
        producer.produce("orders", value, key=str(order["customer_id"]), timestamp=int(ordered * 1000))
        producer.poll(0)
    if producer.flush(SECONDS_MAX):
        raise SystemExit("not all orders were taken")
    return large


def _run(console: Console, home: dict[str, str], *arguments: str, is_shown: bool = False) -> None:
    shown = " ".join(f'"{each}"' if " " in each else each for each in arguments)
    console.print(f"[bold]$[/bold]        penstock {shown}", highlight=False, soft_wrap=True)
    began = time.perf_counter()
    done = subprocess.run(  # noqa: S603  our own program
        [sys.executable, "-m", "penstock.main", *arguments],
        env={**os.environ, **home},
        stdout=None if is_shown else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=5 * SECONDS_MAX,
    )
    if done.returncode:
        raise SystemExit(f"penstock {arguments[0]} failed: {done.stderr[-2_000:]}")
    console.print(f"         {time.perf_counter() - began:.0f} s", style="dim")


def _show_revenue(kafka: str, console: Console) -> None:
    revenue: dict[str, tuple[int, float]] = {}
    latest: dict[tuple[str, str], tuple[int, float]] = {}
    for value in _read_all(kafka, "revenue-per-minute"):
        row = json.loads(value)
        latest[row["minute"], row["country"]] = row["orders"], row["revenue"]
    for (_minute, country), (orders, amount) in latest.items():
        before = revenue.get(country, (0, 0.0))
        revenue[country] = before[0] + orders, before[1] + amount
    table = Table(title="revenue-per-minute, read back by a Kafka client")
    for name in ("country", "orders", "revenue"):
        table.add_column(name, justify="left" if name == "country" else "right")
    for country, (orders, amount) in sorted(revenue.items(), key=lambda each: -each[1][1]):
        table.add_row(country, f"{orders:,}", f"{amount:,.2f}")
    console.print(table)
    total = sum(orders for orders, _amount in revenue.values())
    if total != ORDERS - BROKEN:
        raise SystemExit(f"{total} orders were counted, {ORDERS - BROKEN} were good")
    broken = len(_read_all(kafka, "revenue-dlq"))
    console.print(f"[bold]bad rows[/bold] {broken} in the dead-letter topic revenue-dlq, and the pipeline went on")


def _read_all(kafka: str, topic: str) -> list[bytes]:
    settings = {"group.id": "demo-reader", "enable.auto.commit": False, "isolation.level": "read_committed"}
    consumer = Consumer({"bootstrap.servers": kafka, **settings})
    partitions = consumer.list_topics(topic, SECONDS_MAX).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
    values: list[bytes] = []
    while messages := consumer.consume(1_000, 3.0):
        values += [message.value() for message in messages if message.error() is None]
    consumer.close()
    return values


def _show_large_orders(http: str, expected: int, console: Console) -> None:
    sqs: Any = boto3.client(
        "sqs",
        endpoint_url=f"http://{http}",
        region_name="eu-central-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",  # noqa: S106  nobody checks it
    )
    queue = sqs.create_queue(QueueName="large-orders", Attributes={"PenstockStart": "earliest"})["QueueUrl"]
    count = 0
    while messages := sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=1).get("Messages"):
        entries = [{"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]} for n, each in enumerate(messages)]
        sqs.delete_message_batch(QueueUrl=queue, Entries=entries)
        count += len(messages)
    console.print(f"[bold]SQS[/bold]      {count} large orders from the topic large-orders, by boto3, each deleted")
    if count != expected:
        raise SystemExit(f"{expected} large orders were produced")
