"""A node on every address, and a stock client that came in by one of them; prints what the client was told.

    unshare --map-root-user --net python -m support.door.wildcard_scene DIRECTORY

Only for a network of its own, which has nothing but loopback: there a wildcard reaches nobody.
"""

from __future__ import annotations

import fcntl
import json
import socket
import struct
import sys
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from support.node_process import NodeProcess

SIOCSIFFLAGS: Final = 0x8914
IFF_UP: Final = 1
# Loopback, and not the address that a resolver would give for this machine.
CAME_IN_BY: Final = "127.0.0.2"
PATIENCE_SECONDS: Final = 20


def bring_loopback_up() -> None:
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def main(directory: Path) -> None:
    bring_loopback_up()
    assert [name for _, name in socket.if_nameindex()] == ["lo"], "not a network of our own"
    with NodeProcess(directory, arguments=("--kafka", "0.0.0.0:0"), memory=True) as node:
        bootstrap = f"{CAME_IN_BY}:{node.kafka.rpartition(':')[2]}"
        brokers = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=PATIENCE_SECONDS).brokers
        producer = Producer({"bootstrap.servers": bootstrap})
        producer.produce("greetings", b"hello")
        unsent = producer.flush(PATIENCE_SECONDS)
        # By a group: its coordinator is an address too.
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["greetings"])
        message = consumer.poll(PATIENCE_SECONDS)
        consumer.close()
    told = [f"{broker.host}:{broker.port}" for broker in brokers.values()]
    value = None if message is None or message.error() else (message.value() or b"").decode()
    print(json.dumps({"bootstrap": bootstrap, "told": told, "unsent": unsent, "value": value}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
