"""What is around a request of a door on its way to the node that leads: who asks, for which partitions, under which
leaderships. The request itself is bytes here; those who write it and read it know what it is.

Who may do it was asked at the door that the caller came in by. The other node trusts the login of nodes and asks no
more; what it needs the caller for is what a caller sees.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.domain.security.caller import Caller

# A request goes from the node that was asked to the one that leads, and no further.
FIRST_HOP: Final = 1
# Of one request or answer with all its messages. The internal door takes frames of 100 MiB.
SENT_BYTES_MAX: Final = 32 * 1024 * 1024


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    hop: int
    # None: the node itself asks, as for messages that a caller left behind.
    caller: Caller | None
    # What the asking node has seen of the metadata: who does not know a topic, a queue or an epoch waits for this.
    revision: int
    # Partitions and the epochs of their leaders.
    places: tuple[tuple[int, int], ...]
    body: bytes


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final[msgspec.msgpack.Decoder[Envelope]] = msgspec.msgpack.Decoder(Envelope)


def write_envelope(envelope: Envelope) -> bytes:
    return _ENCODER.encode(envelope)


def read_envelope(data: bytes) -> Envelope:
    """Raises msgspec.DecodeError: it is none."""
    return _DECODER.decode(data)
