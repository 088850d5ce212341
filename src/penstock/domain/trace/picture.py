"""The forms that a journey can be drawn in."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, tzinfo
from typing import Final

from penstock.domain.trace.events import Journey
from penstock.domain.trace.mermaid import mermaid_of
from penstock.domain.trace.svg import svg_of
from penstock.domain.trace.text import text_of

# By name, the media type.
FORMATS: Final = {"text": "text/plain", "mermaid": "text/plain", "svg": "image/svg+xml"}
_RENDERERS: Final[dict[str, Callable[[Journey, tzinfo], str]]] = {
    "text": text_of,
    "mermaid": mermaid_of,
    "svg": svg_of,
}


def render(journey: Journey, form: str, zone: tzinfo = UTC) -> str:
    return _RENDERERS[form](journey, zone)
