"""Regular expressions that come from clients: matched by RE2, in time that grows with the text alone.

Python's own `re` may take for ever on a pattern that is made for it, and it would do so on the event loop. RE2 is also
what Kafka takes patterns with (KIP-848), so the same ones are legal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

# A longer one is nobody's subscription.
CHARACTERS_MAX: Final = 4_096
# What a compiled pattern may take; `(a{1000}){1000}` is refused.
_PROGRAM_BYTES_MAX: Final = 1024 * 1024


def compile_pattern(expression: str) -> Callable[[str], bool] | None:
    """Tells whether a whole text matches; None: this is no pattern, or one that is too large."""
    import re2

    if len(expression) > CHARACTERS_MAX:
        return None
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PROGRAM_BYTES_MAX
    try:
        compiled = re2.compile(expression, options)
    except re2.error:
        return None
    return lambda text: compiled.fullmatch(text) is not None
