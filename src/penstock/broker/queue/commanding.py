"""What the owner of a queue has done to it in every partition, by whoever leads each."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

import msgspec

from penstock.broker.queue.messages import QueueUnavailable
from penstock.broker.relay.asking import Relay, Unanswered
from penstock.domain.queue.definition import QueueDefinition
from penstock.domain.replication.exchange import ForwardKind
from penstock.domain.security.caller import Caller


class What(enum.IntEnum):
    OPEN = 0
    CLOSE = 1
    PAUSE = 2
    RESUME = 3
    # The ends of the partitions' schedules, which a purge remembers;
    MARK = 4
    # and what it does then.
    SKIP = 5


class Command(msgspec.Struct, frozen=True, array_like=True):
    group: str
    what: What


class Commanded(msgspec.Struct, frozen=True, array_like=True):
    problem: QueueUnavailable | None = None
    # By partition.
    marks: dict[int, int] = {}


_ENCODER: Final = msgspec.msgpack.Encoder()
_COMMANDED: Final[msgspec.msgpack.Decoder[Commanded]] = msgspec.msgpack.Decoder(Commanded)
COMMANDS: Final[msgspec.msgpack.Decoder[Command]] = msgspec.msgpack.Decoder(Command)


def encode_commanded(commanded: Commanded) -> bytes:
    return _ENCODER.encode(commanded)


async def tell_leaders(
    relay: Relay, definition: QueueDefinition, partitions: Iterable[int], what: What, *, by: Caller | None = None
) -> QueueUnavailable | dict[int, int]:
    """Done everywhere, or a problem: then it may be done in some partitions, and can be asked for again. Marks, where
    those were asked for."""
    body = _ENCODER.encode(Command(definition.name.group, what))
    marks: dict[int, int] = {}
    for answer in await relay.spread(
        ForwardKind.COMMAND, definition.topic_id, partitions, lambda _indexes: body, by=by
    ):
        if isinstance(answer.body, Unanswered):
            return QueueUnavailable(answer.body.reason)
        done = _COMMANDED.decode(answer.body)
        if done.problem is not None:
            return done.problem
        marks.update(done.marks)
    return marks
