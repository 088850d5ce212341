"""What a stranger wrote does not steer a terminal, and the rest of it is left alone."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from penstock.base.log_events import configure, get_logger
from penstock.base.printable import printable, printable_bytes, printable_line


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    """What a test configures ends with it: its standard error is closed then, and whoever logs next would fail."""
    handlers = logging.getLogger().handlers
    yield
    logging.getLogger().handlers = handlers
    structlog.reset_defaults()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("a\rb\x08c\x7f", "a\\x0db\\x08c\\x7f"),
        ("\x9b31m", "\\x9b31m"),
        ("abc\u202edcba", "abc\\u202edcba"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("Grüße, 你好 🎉", "Grüße, 你好 🎉"),
    ],
)
def test_control_characters_are_shown_and_not_obeyed(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable_bytes(text.encode()) == shown.encode()


def test_bytes_that_are_no_text_are_shown_as_numbers() -> None:
    assert printable_bytes(b"\x9b31m\xff\x00") == b"\\x9b31m\\xff\\x00"


def test_a_line_stays_one_line() -> None:
    assert printable_line("a\nb\tc") == "a\\nb\\tc"


@pytest.mark.parametrize("form", ["text", "json"])
def test_names_of_strangers_neither_steer_the_log_nor_add_lines_to_it(
    capsys: pytest.CaptureFixture[str], form: str
) -> None:
    configure(form, "info")  # type: ignore[arg-type]
    get_logger("kafka").warning("login refused", user="eve\x1b[2J\n2026 [info] all is well", error="\x9b31m")
    (line,) = capsys.readouterr().err.splitlines()
    assert "\x1b[2J" not in line
    assert "\x9b" not in line
    if form == "json":
        assert json.loads(line)["user"].startswith("eve\\x1b[2J\\n2026")


def test_what_libraries_say_becomes_an_event_once_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    configure("json", "info")
    for _ in range(100):
        logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    logging.getLogger("uvicorn.error").info("Started server process")
    (line,) = capsys.readouterr().err.splitlines()
    event = json.loads(line)
    assert (event["area"], event["level"], event["event"]) == (
        "uvicorn.error",
        "warning",
        "Invalid HTTP request received.",
    )
