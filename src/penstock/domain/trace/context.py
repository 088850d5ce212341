"""W3C trace context (`traceparent`, `tracestate`) as headers of messages: whoever sent a message can be found from it.

It passes through every door: Kafka's headers stay as they are, attributes of SQS are headers of the same name, and what
comes with an HTTP request is put on its messages here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

PARENT_HEADER: Final = "traceparent"
STATE_HEADER: Final = "tracestate"
# As the recommendation has it; later versions may put something behind.
_PARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
PARENT_CHARACTERS_MAX: Final = 256
# The recommendation's own bound.
STATE_CHARACTERS_MAX: Final = 512


def context_of(headers: Mapping[str, str]) -> dict[str, str]:
    """Of a request, by names in lower case. None at all if it is not one: what is broken is not handed on."""
    parent = headers.get(PARENT_HEADER, "")
    if len(parent) > PARENT_CHARACTERS_MAX or _PARENT.fullmatch(parent) is None:
        return {}
    state = headers.get(STATE_HEADER, "")
    if not state or len(state) > STATE_CHARACTERS_MAX:
        return {PARENT_HEADER: parent}
    return {PARENT_HEADER: parent, STATE_HEADER: state}


def with_context(own: dict[str, str], context: Mapping[str, str]) -> dict[str, str]:
    """A message's headers and those of the request that it came in. A message that has its own keeps it whole."""
    return own if PARENT_HEADER in own or not context else {**own, **context}
