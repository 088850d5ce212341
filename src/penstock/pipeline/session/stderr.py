"""A quiet start of Spark: what its JVM says on stderr passes through here, and the chatter of every start is left out.

Nothing is lost when it matters: if the start fails, all that was held back is shown; afterwards all lines pass but the
few that every JVM says about itself.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import Final, Self

_STDERR: Final = 2
# Said by the JVM itself, some of it long after the start.
_CHATTER: Final = (
    b"WARNING: Using incubator modules",
    b"WARNING: A restricted method",
    b"WARNING: Restricted methods",
    b"WARNING: Use --enable-native-access",
    b"WARNING: A terminally deprecated method",
    b"WARNING: Please consider reporting this",
    b"WARNING: sun.misc.Unsafe",
    b"WARNING: java.lang.System::",
    b"WARNING: package sun.security.action not in java.base",
)


class QuietStart:
    """While it is entered, new processes get a stderr that is read here; ours is the old one again afterwards."""

    def __init__(self) -> None:
        self._held: list[bytes] = []
        # Guards the two below against the reader's thread.
        self._lock = threading.Lock()
        self._is_starting = True
        self._shown = -1
        self._saved = -1

    def __enter__(self) -> Self:
        reading, writing = os.pipe()
        # Of its own: it outlives this block, and whoever closes stderr later must not close this.
        self._shown = os.dup(_STDERR)
        self._saved = os.dup(_STDERR)
        os.dup2(writing, _STDERR)
        os.close(writing)
        threading.Thread(target=self._pass_on, args=(reading,), name="spark-stderr", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.dup2(self._saved, _STDERR)
        os.close(self._saved)
        with self._lock:
            self._is_starting = False
            held, self._held = self._held, []
        if kind is not None:
            self._show(b"".join(held))

    def _pass_on(self, reading: int) -> None:
        with os.fdopen(reading, "rb") as lines:
            for line in lines:
                if line.startswith(_CHATTER):
                    continue
                with self._lock:
                    if self._is_starting:
                        self._held.append(line)
                        continue
                self._show(line)
        os.close(self._shown)

    def _show(self, data: bytes) -> None:
        try:
            os.write(self._shown, data)
        except OSError:
            # Whoever read it is gone.
            return
