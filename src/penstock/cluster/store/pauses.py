"""When somebody who ends sessions has not looked for a while: those whose end it missed are not to blame.

On a machine that was suspended everybody's time is over when it wakes: whoever looks first would end all the others. So
after a pause longer than half a session's TTL the session is not ended for one TTL, in which its holder renews it if it
lives.
"""

from __future__ import annotations

from typing import Final

# Looks are tens of milliseconds apart; a session of twice this is shorter than any that is asked for.
PAUSE_MS_MIN: Final = 250


class Pauses:
    def __init__(self, now_ms: int) -> None:
        self._looked_ms = now_ms
        # When each ended and how long it was, each shorter than the one before it: a longer one covers those before.
        self._ended: list[tuple[int, int]] = []

    def look(self, now_ms: int) -> None:
        """At each look, before anybody's time is judged."""
        length_ms = now_ms - self._looked_ms
        self._looked_ms = now_ms
        self._ended = [pause for pause in self._ended if now_ms < pause[0] + 2 * pause[1]]
        if length_ms < PAUSE_MS_MIN:
            return
        while self._ended and self._ended[-1][1] <= length_ms:
            self._ended.pop()
        self._ended.append((now_ms, length_ms))

    def spare(self, ttl_ms: int, now_ms: int) -> bool:
        """Whether a session of this TTL must not be ended now."""
        return any(2 * length_ms > ttl_ms and now_ms < ended_ms + ttl_ms for ended_ms, length_ms in self._ended)
