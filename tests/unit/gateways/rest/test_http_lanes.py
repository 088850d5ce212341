"""Priorities from door to door: whoever published a message, the most urgent is received first."""

from __future__ import annotations

import httpx
from aiokafka import AIOKafkaProducer

from penstock.gateways.http.server import HttpServerConfig
from support.door.conversation import ANY_PORT, running_node


async def receive(http: httpx.AsyncClient, count: int) -> list[str]:
    reply = await http.post("/v1/queues/orders/workers/receive", json={"count": count})
    assert reply.status_code == 200, reply.text
    return [message["value"] for message in reply.json()["messages"]]


async def test_urgent_messages_of_kafka_and_http_producers_come_first() -> None:
    async with running_node(http=HttpServerConfig(listen=ANY_PORT)) as node:
        scans = node.parts.queues.lane_scans
        scans.first_wait_ms = scans.wait_ms = 20_000
        await node.create_topic("orders", **{"segment.bytes": "100000"})
        producer = AIOKafkaProducer(bootstrap_servers=str(node.addresses["kafka"]), compression_type="gzip")
        await producer.start()
        try:
            async with httpx.AsyncClient(base_url=f"http://{node.addresses['http']}", timeout=20) as http:
                for first in range(0, 20_000, 1_000):
                    sent = [await producer.send("orders", b"%05d" % (first + each)) for each in range(1_000)]
                    for each in sent:
                        await each
                headers = [("penstock-priority", b"8")]
                await producer.send_and_wait("orders", b"by Kafka", headers=headers)
                body = {"messages": [{"value": "by HTTP", "priority": 9}, {"value": "no hurry", "priority": 1}]}
                reply = await http.post("/v1/topics/orders/messages", json=body)
                assert reply.status_code == 201, reply.text
                assert await receive(http, 4) == ["by HTTP", "by Kafka", "00000", "00001"]
                # The tenth message is a lower lane's.
                later = await receive(http, 10)
                assert "no hurry" in later
                assert len(later) == 10
        finally:
            await producer.stop()
