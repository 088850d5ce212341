"""The language of the dialogues: a script asks, both brokers answer, what they answered is written down.

    @dialogue(ListOffsetsRequest)
    def latest_of_an_empty_topic(talk: Talk) -> None:
        topic = talk.topic("empty")
        talk.ask("latest", list_offsets(topic, -1))

A script knows nothing of the broker it talks to. It is run once per level: at the lowest level the APIs it is about
speak the oldest version that both brokers serve, at the highest the newest, and the levels between visit every other
one. All other APIs speak their newest. Names of topics, groups and transactions come from `talk.name` or `talk.topic`,
so that no two runs meet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from conformance.differential.normal_form import Symbols, Tree, normal_form
from penstock.codec import kafka as wire
from penstock.codec.kafka import ErrorCode, Request, Response
from penstock.codec.kafka.messages import create_topics as ct
from penstock.codec.kafka.messages import list_offsets as lo
from penstock.codec.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from support.door.raw_kafka import HasAddress, RawConnection

# Kafka tells its own broker of a new topic a little later; nothing else here is waited for.
PATIENCE_SECONDS: Final = 20.0
# Nothing that is asked here takes a second, but for a JVM that starts.
ANSWER_SECONDS_MAX: Final = 10.0
MAIN: Final = "main"
# The doors of a broker: one that asks nobody for a login, and one that asks everybody.
OPEN, LOGIN = "open", "login"
# Told from 0 on for the sake of librdkafka 2.0, but Kafka takes it from 3 on only.
_LOWEST: Final = {wire.ProduceRequest.api_key: 3}


class Versions(msgspec.Struct, frozen=True):
    lowest: int
    highest: int


Served = Mapping[int, Versions]


class Step(msgspec.Struct, frozen=True):
    name: str
    request: str
    version: int
    answer: Tree


class Dialogue(msgspec.Struct, frozen=True):
    name: str
    apis: tuple[int, ...]
    script: Callable[[Talk], None]
    # At which door it is held.
    at: str = OPEN

    def missing(self, served: Served) -> list[str]:
        """APIs it is about that not both brokers serve."""
        return [wire.APIS[key].name for key in self.apis if key not in served]

    def level_count(self, served: Served) -> int:
        return max(served[key].highest - served[key].lowest + 1 for key in self.apis)

    def versions(self, level: int, served: Served) -> dict[int, int]:
        count = self.level_count(served)
        chosen = {key: versions.highest for key, versions in served.items()}
        for key in self.apis:
            steps = served[key].highest - served[key].lowest
            chosen[key] = served[key].lowest + (round(level * steps / (count - 1)) if count > 1 else 0)
        return chosen


DIALOGUES: Final[dict[str, Dialogue]] = {}


def dialogue(*about: type[Request], at: str = OPEN) -> Callable[[Callable[[Talk], None]], Callable[[Talk], None]]:
    """A script, and the APIs whose versions it is run through."""

    def register(script: Callable[[Talk], None]) -> Callable[[Talk], None]:
        assert script.__name__ not in DIALOGUES, f"two dialogues are called {script.__name__}"
        apis = tuple(request.api_key for request in about)
        DIALOGUES[script.__name__] = Dialogue(script.__name__, apis, script, at)
        return script

    return register


class Pending(msgspec.Struct, frozen=True):
    """Asked, not answered yet."""

    step: str
    request: Request
    version: int
    connection: str


class Talk:
    """One run of one dialogue with one broker."""

    def __init__(self, broker: HasAddress, prefix: str, versions: Mapping[int, int], newest: Served) -> None:
        self.steps: list[Step] = []
        self.ids: dict[str, bytes] = {}
        self._broker = broker
        self._prefix = prefix
        self._versions = versions
        self._newest = newest
        self._symbols = Symbols(prefix=prefix, port=broker.address[1])
        self._connections: dict[str, RawConnection] = {}

    # names

    def name(self, word: str) -> str:
        return f"{self._prefix}{word}"

    def topic(self, word: str, partitions: int = 1, **configs: str) -> str:
        """A new topic that its broker knows of; settings by Kafka's names with _ for the dots."""
        name = self.name(word)
        entries = tuple(ct.CreatableTopicConfig(key.replace("_", "."), value) for key, value in configs.items())
        wish = ct.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=entries)
        request = ct.CreateTopicsRequest(topics=(wish,), timeout_ms=10_000)
        reply = self.quietly(request, version=self.newest(request))
        assert reply.topics[0].error_code == ErrorCode.NONE, reply
        self.await_topic(name, partitions)
        return name

    def await_topic(self, name: str, partitions: int = 1) -> bytes:
        """Until the broker leads every partition of it; its id."""
        request = MetadataRequest(topics=(MetadataRequestTopic(name=name),), allow_auto_topic_creation=False)

        def is_led(reply: MetadataResponse) -> bool:
            (found,) = reply.topics
            return (
                found.error_code == ErrorCode.NONE
                and len(found.partitions) == partitions
                and all(each.error_code == ErrorCode.NONE and each.leader_id >= 0 for each in found.partitions)
            )

        reply = self._until(request, is_led, version=self.newest(request))
        topic_id = bytes(reply.topics[0].topic_id)
        self._symbols.learn_topic(topic_id, name)
        self.ids[name] = topic_id
        self._await_logs(name, partitions)
        return topic_id

    def _await_logs(self, name: str, partitions: int) -> None:
        """Kafka tells clients that it leads a partition a moment before it knows so itself."""
        places = tuple(lo.ListOffsetsPartition(number, -1, -1) for number in range(partitions))
        request = lo.ListOffsetsRequest(replica_id=-1, topics=(lo.ListOffsetsTopic(name, places),))
        self._until(
            request,
            lambda reply: all(place.error_code == ErrorCode.NONE for place in reply.topics[0].partitions),
            version=self.newest(request),
        )

    def await_gone(self, name: str) -> None:
        request = MetadataRequest(topics=(MetadataRequestTopic(name=name),), allow_auto_topic_creation=False)
        self._until(
            request,
            lambda reply: reply.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            version=self.newest(request),
        )

    def version(self, request: type[Request]) -> int:
        return self._versions[request.api_key]

    def newest(self, request: Request) -> int:
        """For what only prepares: whatever version the dialogue is about."""
        return self._newest[request.api_key].highest

    # talking

    def ask(
        self,
        step: str,
        request: Request,
        *,
        on: str = MAIN,
        version: int | None = None,
        until: Callable[[Any], bool] | None = None,
        show: Callable[[Any], Any] | None = None,
    ) -> Any:
        """The answer, written down; with `until` the first that satisfies it; with `show` what that takes from it."""
        version = self._versions[request.api_key] if version is None else version
        if until is None:
            return self.hear(self.send(step, request, on=on, version=version), show=show)
        reply = self._until(request, until, version=version, on=on)
        self._write(step, request, version, reply, show)
        return reply

    def send(self, step: str, request: Request, *, on: str = MAIN, version: int | None = None) -> Pending:
        """Asks and does not wait."""
        version = self._versions[request.api_key] if version is None else version
        self._connection(on).send(request, version)
        return Pending(step, request, version, on)

    def hear(self, pending: Pending, *, show: Callable[[Any], Any] | None = None) -> Any:
        reply = self._receive(pending)
        self._write(pending.step, pending.request, pending.version, reply, show)
        return reply

    def quietly(self, request: Request, *, version: int | None = None, on: str = MAIN) -> Any:
        """For what must be so before the dialogue begins: nothing is written down."""
        version = self._versions[request.api_key] if version is None else version
        return self._receive(self.send("", request, on=on, version=version))

    def quietly_until(self, request: Request, is_so: Callable[[Any], bool]) -> Any:
        """Asks again and again until the answer is so; nothing is written down."""
        return self._until(request, is_so)

    def tell(self, request: Request, *, on: str = MAIN, version: int | None = None) -> None:
        """For what gets no answer (acks=0)."""
        self._connection(on).send(request, self._versions[request.api_key] if version is None else version)

    def raw(self, step: str, frame: bytes, show: Callable[[bytes], Any] = bytes.hex) -> None:
        """Any bytes on a connection of their own; the answer without its correlation id, or that there was none."""
        with RawConnection(self._broker, timeout_seconds=ANSWER_SECONDS_MAX) as connection:
            connection.send_bytes(frame)
            try:
                answer = connection.receive_frame()
            except ConnectionError:
                answer = None
            except TimeoutError:
                answer = b"\0\0\0\0nothing"
        self.note(step, "closed" if answer is None else show(answer[4:]))

    def bare(self, data: bytes, *, on: str = MAIN) -> bytes | None:
        """Bytes without a request around them, and such an answer; nothing is written down. None: closed."""
        connection = self._connection(on)
        connection.send_bytes(len(data).to_bytes(4, "big") + data)
        try:
            return connection.receive_frame()
        except (ConnectionError, TimeoutError):
            return None

    def note(self, step: str, value: Any) -> None:
        """Something worked out from answers, compared like an answer."""
        self.steps.append(Step(step, "note", 0, normal_form(value, self._symbols)))

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _connection(self, name: str) -> RawConnection:
        if name not in self._connections:
            self._connections[name] = RawConnection(self._broker, timeout_seconds=ANSWER_SECONDS_MAX)
        return self._connections[name]

    def _receive(self, pending: Pending) -> Any:
        """None: the broker closed the connection, or said nothing for so long that it will not."""
        response = wire.APIS[pending.request.api_key].response
        try:
            frame = self._connection(pending.connection).receive_frame()
        except (ConnectionError, TimeoutError):
            frame = None
        if frame is None:
            self._connections.pop(pending.connection).close()
            return None
        decoded = wire.decode_response(response, pending.version, memoryview(frame))
        assert not isinstance(decoded, wire.Malformed), f"{pending.step}: {decoded.reason}"
        return decoded[1]

    def _until(
        self, request: Request, is_so: Callable[[Any], bool], *, version: int | None = None, on: str = MAIN
    ) -> Any:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            reply = self.quietly(request, version=version, on=on)
            if reply is not None and is_so(reply):
                return reply
            assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS} s, last heard {reply}"
            time.sleep(0.01)

    def _write(
        self, step: str, request: Request, version: int, reply: Response | None, show: Callable[[Any], Any] | None
    ) -> None:
        if reply is None:
            answer: Tree = {"connection": "closed"}
        else:
            answer = normal_form(show(reply) if show is not None else reply, self._symbols)
        self.steps.append(Step(step, type(request).__name__.removesuffix("Request"), version, answer))


def served_by(broker: HasAddress) -> dict[int, Versions]:
    with RawConnection(broker) as connection:
        reply = connection.ask(wire.ApiVersionsRequest(), wire.ApiVersionsResponse, 0)
    return {each.api_key: Versions(each.min_version, each.max_version) for each in reply.api_keys}


def served_by_both(one: HasAddress, other: HasAddress) -> dict[int, Versions]:
    """What both serve and this test can speak."""
    first, second = served_by(one), served_by(other)
    common: dict[int, Versions] = {}
    for key in sorted(first.keys() & second.keys() & wire.APIS.keys()):
        api = wire.APIS[key]
        lowest = max(first[key].lowest, second[key].lowest, api.version_min, _LOWEST.get(key, 0))
        highest = min(first[key].highest, second[key].highest, api.version_max)
        if lowest <= highest:
            common[key] = Versions(lowest, highest)
    return common
