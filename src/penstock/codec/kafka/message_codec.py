"""Messages to bytes and back: compiled at first use, then looked up by class and version."""

from __future__ import annotations

import struct
from collections.abc import Generator
from typing import Any, Final, TypeVar, cast

from penstock.codec.kafka.compiler_decode import Decoder, StepDecoder, compile_decoder, compile_step_decoder
from penstock.codec.kafka.compiler_encode import Encoder, StepEncoder, compile_encoder, compile_step_encoder
from penstock.codec.kafka.primitives import Malformed, MalformedError, OverBound, OverBoundError
from penstock.codec.kafka.schema import Body, BytesLike, version_range

BodyT = TypeVar("BodyT", bound=Body)

# One entry per class and valid version, so both are bounded by the declarations.
_DECODERS: Final[dict[tuple[type[Body], int], Decoder]] = {}
_ENCODERS: Final[dict[tuple[type[Body], int], Encoder]] = {}
_STEP_DECODERS: Final[dict[tuple[type[Body], int], StepDecoder]] = {}
_STEP_ENCODERS: Final[dict[tuple[type[Body], int], StepEncoder]] = {}

# What a compiled decoder raises on bytes that are not its message: a refusal of its own, a fixed-size read
# past the end, a byte read past the end, and text that is not UTF-8.
REFUSALS: Final = (MalformedError, struct.error, IndexError, UnicodeDecodeError)


def decode(message_class: type[BodyT], version: int, data: BytesLike, position: int = 0) -> BodyT | Malformed:
    """The message that fills `data` from `position` on, or why there is none. Never raises on any bytes.

    Records come out as views into `data`: they are valid for as long as its owner leaves it alone.
    """
    decoder = _DECODERS.get((message_class, version))
    if decoder is None:
        if not is_valid_version(message_class, version):
            return Malformed(f"{message_class.__name__} has no version {version}")
        decoder = compile_decoder(message_class, version, is_flexible=is_flexible(message_class, version))
        _DECODERS[message_class, version] = decoder
    try:
        # A view, so that slices cost nothing. Everything else in the compiled function relies on this.
        view = data if type(data) is memoryview else memoryview(data)
        return cast(BodyT, decoder(view, position))
    except OverBoundError as error:
        return OverBound(f"{message_class.__name__} v{version}: {error}")
    except REFUSALS as error:
        return Malformed(f"{message_class.__name__} v{version}: {reason_of(error)}")


def decode_in_steps(
    message_class: type[BodyT], version: int, data: memoryview, position: int = 0
) -> Generator[None, None, BodyT | Malformed]:
    """The same in steps. The owner of `data` leaves it alone until they are done. The version must be a valid one."""
    decoder = _STEP_DECODERS.get((message_class, version))
    if decoder is None:
        decoder = compile_step_decoder(message_class, version, is_flexible=is_flexible(message_class, version))
        _STEP_DECODERS[message_class, version] = decoder
    try:
        return cast(BodyT, (yield from decoder(data, position)))
    except OverBoundError as error:
        return OverBound(f"{message_class.__name__} v{version}: {error}")
    except REFUSALS as error:
        return Malformed(f"{message_class.__name__} v{version}: {reason_of(error)}")


def reason_of(error: Exception) -> str:
    """For people: what was wrong with the bytes, not which call noticed."""
    if isinstance(error, MalformedError):
        return str(error)
    if isinstance(error, UnicodeDecodeError):
        return f"text is not UTF-8: {error.reason}"
    return "the frame ends inside a field"


def encode(message: Body, version: int) -> bytes:
    pieces: list[bytes] = []
    parts: list[BytesLike] = []
    encoder_for(type(message), version)(message, pieces, parts)
    if not parts:
        return b"".join(pieces)
    return b"".join(parts) + b"".join(pieces)


def encoder_for(message_class: type[Any], version: int) -> Encoder:
    encoder = _ENCODERS.get((message_class, version))
    if encoder is None:
        assert is_valid_version(message_class, version), f"{message_class.__name__} has no version {version}"
        encoder = compile_encoder(message_class, version, is_flexible=is_flexible(message_class, version))
        _ENCODERS[message_class, version] = encoder
    return encoder


def step_encoder_for(message_class: type[Any], version: int) -> StepEncoder:
    encoder = _STEP_ENCODERS.get((message_class, version))
    if encoder is None:
        encoder = compile_step_encoder(message_class, version, is_flexible=is_flexible(message_class, version))
        _STEP_ENCODERS[message_class, version] = encoder
    return encoder


def is_valid_version(message_class: type[Body], version: int) -> bool:
    return version in version_range(message_class.valid_versions)


def is_flexible(message_class: type[Body], version: int) -> bool:
    """In this version lengths are compact and every part ends with a tagged section."""
    return version in version_range(message_class.flexible_versions)
