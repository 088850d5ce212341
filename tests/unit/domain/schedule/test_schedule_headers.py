"""Headers that delay a message, and what becomes of them."""

from __future__ import annotations

import pytest

from penstock.domain.schedule.headers import BadDelivery, Header, due_of, released_headers

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("headers", "due_ms"),
    [
        ([("penstock-delay-ms", b"500")], NOW + 500),
        ([("penstock-deliver-at", b"1700000009000")], NOW + 9_000),
        ([("other", b"x"), ("penstock-delay-ms", b"0")], None),
        ([("penstock-deliver-at", b"5")], None),
        ([], None),
        # The later one: never too early.
        ([("penstock-delay-ms", b"500"), ("penstock-deliver-at", b"1700000000100")], NOW + 500),
        ([("penstock-delay-ms", b"100"), ("penstock-delay-ms", b"200")], NOW + 200),
        ([("penstock-delay-ms", str(100 * 365 * 86_400_000).encode())], NOW + 100 * 365 * 86_400_000),
    ],
)
def test_delivery_headers_say_when_a_message_is_due(headers: list[Header], due_ms: int | None) -> None:
    assert due_of(headers, NOW) == due_ms


@pytest.mark.parametrize("value", [None, b"", b"-5", b"1.5", b"soon", b"9" * 19, b"9" * 5_000, "٣".encode()])
def test_delay_that_is_no_number_is_bad(value: bytes | None) -> None:
    assert isinstance(due_of([("penstock-delay-ms", value)], NOW), BadDelivery)


def test_released_message_is_not_delayed_again_by_a_mirror() -> None:
    headers: list[Header] = [("penstock-delay-ms", b"500"), ("mine", b"x"), ("penstock-deliver-at", b"7")]
    released = released_headers(headers, message_id="abc", arrived_ms=NOW, written_ms=NOW - 9)
    assert due_of(released, NOW + 1) is None
    assert dict(released) == {
        "penstock-origin-delay-ms": b"500",
        "mine": b"x",
        "penstock-origin-deliver-at": b"7",
        "penstock-scheduled-at": str(NOW).encode(),
        "penstock-origin-timestamp": str(NOW - 9).encode(),
        "penstock-message-id": b"abc",
    }


def test_copy_that_is_delayed_keeps_the_id_of_its_original() -> None:
    first = released_headers([("penstock-delay-ms", b"5")], message_id="first", arrived_ms=1, written_ms=1)
    again = released_headers([*first, ("penstock-delay-ms", b"8")], message_id="second", arrived_ms=2, written_ms=2)
    assert [value for name, value in again if name == "penstock-message-id"] == [b"first"]
    assert [value for name, value in again if name == "penstock-origin-delay-ms"] == [b"8"]
