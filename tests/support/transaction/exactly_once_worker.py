"""Consume, transform, produce: an application that does each input once, in a process of its own.

    python -m support.transaction.exactly_once_worker BOOTSTRAP INPUT OUTPUT NAME classic|consumer

Each turn is one transaction: what was read, what came of it, and how far was read. NAME is its transactional id and its
instance in a classic group, so that one started again takes the place of the one that died. One whose name begins with
"guest" is no static member: it comes and goes, and the partitions with it. A line on standard output for every commit;
ends with FENCED when somebody else has its name, with LOST when it does not know how to go on, and on SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, Producer, TopicPartition

# Few, so that there are many transactions to be hit.
MESSAGES_MAX: Final = 20
# One turn in so many ends otherwise than it should: nobody is killed often enough just before a commit.
TURNS_TO_ABORT: Final = 7
CALL_SECONDS: Final = 10.0
PATIENCE_SECONDS: Final = 60.0
SESSION_MS: Final = 30_000
GUEST: Final = "guest"
FENCED: Final = 3
LOST: Final = 4

_QUICK: Final[dict[str, Any]] = {
    # A node is back within a second: a client that waits longer only makes the test longer.
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 20,
    # librdkafka 2.16 forgets its brokers when none can be reached, but sends a group's positions to the forgotten one
    # for minutes: with a single node, every restart would end in a wait for nothing.
    "metadata.recovery.strategy": "none",
    "log_level": 0,
}


def _protocol(protocol: str, name: str) -> dict[str, Any]:
    """A member of the newer protocol is no static one: nobody could take its place before its session is over."""
    if protocol == "consumer":
        return {"group.protocol": "consumer"}
    times = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 200}
    return times if name.startswith(GUEST) else {**times, "group.instance.id": name}


class FencedError(Exception):
    pass


class MustAbortError(Exception):
    pass


class Worker:
    def __init__(self, bootstrap: str, source: str, target: str, name: str, protocol: str) -> None:
        self._source = source
        self._target = target
        self._turns = 0
        self._is_told_to_end = False
        signal.signal(signal.SIGTERM, self._on_signal)
        self._producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0, **_QUICK})
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"of-{source}",
                **_protocol(protocol, name),
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 20,
                **_QUICK,
            }
        )

    def run(self) -> None:
        self._insist(lambda: self._producer.init_transactions(CALL_SECONDS))
        self._consumer.subscribe([self._source])
        while not self._is_told_to_end:
            polled = self._consumer.consume(MESSAGES_MAX, 0.02)
            messages = [message for message in polled if message.error() is None]
            if messages:
                self._do_once(messages)
        self._consumer.close()

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._is_told_to_end = True

    def _do_once(self, messages: Sequence[Message]) -> None:
        try:
            self._producer.begin_transaction()
            for message in messages:
                self._producer.produce(self._target, message.value(), partition=message.partition() or 0)
            read_to: dict[int, int] = {}
            for message in messages:
                read_to[message.partition() or 0] = (message.offset() or 0) + 1
            places = [TopicPartition(self._source, number, offset) for number, offset in read_to.items()]
            group = self._consumer.consumer_group_metadata()
            self._insist(lambda: self._producer.send_offsets_to_transaction(places, group, CALL_SECONDS))
            self._turns += 1
            if self._turns % TURNS_TO_ABORT == 0:
                raise MustAbortError("on purpose")
            self._insist(lambda: self._producer.commit_transaction(CALL_SECONDS))
        except MustAbortError:
            self._insist(lambda: self._producer.abort_transaction(CALL_SECONDS))
            self._rewind()
            say("aborted")
        else:
            say(f"committed {len(messages)}")

    def _rewind(self) -> None:
        """What was read and not committed will be read again."""
        held = self._consumer.assignment()
        for place in self._consumer.committed(held, CALL_SECONDS) if held else ():
            place.offset = place.offset if place.offset >= 0 else OFFSET_BEGINNING
            self._consumer.seek(place)

    @staticmethod
    def _insist(call: Callable[[], None]) -> None:
        """Calls again for as long as the client says that it may."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                call()
            except KafkaException as failure:
                error = failure.args[0]
                if error.fatal():
                    raise FencedError(str(error)) from failure
                if error.txn_requires_abort():
                    raise MustAbortError(str(error)) from failure
                if not error.retriable() or time.monotonic() > deadline:
                    raise
            else:
                return


def say(what: str) -> None:
    sys.stdout.write(what + "\n")
    sys.stdout.flush()


def main() -> int:
    try:
        Worker(*sys.argv[1:6]).run()
    except FencedError as error:
        say(f"fenced: {error}")
        return FENCED
    except (KafkaException, MustAbortError) as error:
        say(f"lost: {error}")
        return LOST
    return 0


if __name__ == "__main__":
    code = main()
    # Not by the way out that destroys the clients: librdkafka's may take its time over a transaction that nobody wants.
    os._exit(code)
