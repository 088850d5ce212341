"""W3C trace context of a request, handed to its messages."""

from __future__ import annotations

import pytest

from penstock.domain.trace.context import STATE_CHARACTERS_MAX, context_of, with_context

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_context_is_taken_from_a_request() -> None:
    assert context_of({"traceparent": PARENT, "tracestate": "a=1"}) == {"traceparent": PARENT, "tracestate": "a=1"}
    assert context_of({"traceparent": PARENT}) == {"traceparent": PARENT}
    assert context_of({}) == {}


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "00",
        PARENT.upper(),
        PARENT.replace("00-", "ff-", 1),
        PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32),
        PARENT.replace("00f067aa0ba902b7", "0" * 16),
        PARENT + "-" + "x" * 300,
        PARENT + "\n",
    ],
)
def test_what_is_no_context_is_not_handed_on(parent: str) -> None:
    assert context_of({"traceparent": parent, "tracestate": "a=1"}) == {}


def test_a_state_that_is_too_long_is_left_out() -> None:
    assert context_of({"traceparent": PARENT, "tracestate": "x" * (STATE_CHARACTERS_MAX + 1)}) == {
        "traceparent": PARENT
    }


def test_a_later_version_may_say_more() -> None:
    later = f"cc{PARENT[2:]}-what-comes-next"
    assert context_of({"traceparent": later}) == {"traceparent": later}


def test_a_message_keeps_its_own_context_whole() -> None:
    own = {"traceparent": PARENT.replace("4bf9", "1111"), "other": "x"}
    assert with_context(own, {"traceparent": PARENT, "tracestate": "a=1"}) == own
    assert with_context({"other": "x"}, {"traceparent": PARENT}) == {"other": "x", "traceparent": PARENT}
    assert with_context({"other": "x"}, {}) == {"other": "x"}
