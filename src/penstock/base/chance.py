"""Where chance comes from: ids, secrets and delays that nobody can foresee.

Everything that needs any is handed a `Chance`, as it is handed a `Clock`. All of it is drawn from one source of bytes:
the system's, or in a simulation a seed's, which gives the same run twice.
"""

from __future__ import annotations

import base64
import secrets
import uuid
from collections.abc import Callable
from typing import Final

# As much as a float holds exactly.
_FRACTION_BITS: Final = 53


class Chance:
    __slots__ = ("bytes",)

    def __init__(self, draw: Callable[[int], bytes] = secrets.token_bytes) -> None:
        # So many of them, each as likely as any other.
        self.bytes = draw

    def below(self, bound: int) -> int:
        """From 0 on. Each is as likely as any other, but for a part in 2**64."""
        assert bound > 0
        return int.from_bytes(self.bytes((bound.bit_length() + 7) // 8 + 8)) % bound

    def fraction(self) -> float:
        """From 0.0 on, below 1.0."""
        return self.below(1 << _FRACTION_BITS) / (1 << _FRACTION_BITS)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=self.bytes(16), version=4)

    def text(self, byte_count: int) -> str:
        """Letters, digits, dashes and underscores with so many bytes of chance in them."""
        return base64.urlsafe_b64encode(self.bytes(byte_count)).rstrip(b"=").decode()


SYSTEM_CHANCE: Final = Chance()
