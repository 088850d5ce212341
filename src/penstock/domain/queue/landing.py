"""What became of a batch of the mover at the node that leads its target, as that node tells it.

The batch bears the sequence of its intent, so that whoever gets no answer sends it again: the second time it is there
already, and that is the same answer.
"""

from __future__ import annotations

from typing import Final

import msgspec

# Of a batch with its frame, which the internal door takes up to 100 MiB of. What is larger is divided.
SENT_BYTES_MAX: Final = 96 * 1024 * 1024

_NOWHERE: Final = -1


class Landing(msgspec.Struct, frozen=True, array_like=True):
    """Committed at that offset; or refused, by the word that the target's partition has for it, and why."""

    base_offset: int = _NOWHERE
    refusal: str = ""
    reason: str = ""


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final[msgspec.msgpack.Decoder[Landing]] = msgspec.msgpack.Decoder(Landing)


def write_landing(landing: Landing) -> bytes:
    return _ENCODER.encode(landing)


def read_landing(body: bytes) -> Landing:
    """Raises msgspec.DecodeError: it is the answer to something else."""
    return _DECODER.decode(body)
