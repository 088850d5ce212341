"""Log events with fields: `log.info("segment rolled", partition=..., base_offset=..., bytes=...)`.

Text for people at a terminal, JSON lines for collectors. Everything goes to standard error: standard output belongs
to the line that says the node is ready, and to the tables of the command line.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import Final, Literal, TextIO, cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor

from penstock.base.printable import printable, printable_line

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
REPEAT_SECONDS: Final = 60.0
KINDS_MAX: Final = 1_000
# Tracebacks.
_OF_LINES: Final = frozenset({"exception", "stack"})


def configure(log_format: LogFormat = "text", level: LogLevel = "info") -> None:
    renderer: Processor
    if log_format == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _make_printable,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(file=cast(TextIO, _StandardError())),
        cache_logger_on_first_use=True,
    )
    logging.getLogger().handlers = [_OtherLibraries()]


class _StandardError:
    """As it is now. A node whose log nobody reads any more (`penstock serve 2>&1 | head`) goes on all the same."""

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.flush()


class _OtherLibraries(logging.Handler):
    """Warnings of libraries become events as ours are; without it Python writes them to standard error as bare lines.
    The same one is told once a minute: uvicorn says of every request of a stranger that it cannot be read."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._told_s: dict[tuple[str, str], float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        kind = (record.name, str(record.msg))
        if record.created - self._told_s.get(kind, 0.0) < REPEAT_SECONDS:
            return
        if len(self._told_s) >= KINDS_MAX:
            self._told_s.clear()
        self._told_s[kind] = record.created
        tell = get_logger(record.name).error if record.levelno >= logging.ERROR else get_logger(record.name).warning
        tell(record.getMessage(), **({"exc_info": record.exc_info} if record.exc_info else {}))


def _make_printable(_logger: object, _name: str, event: EventDict) -> EventDict:
    """Names and errors of strangers neither steer the terminal that shows the log nor add lines to it."""
    for name, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[name] = printable(value) if name in _OF_LINES else printable_line(value)
    return event


def get_logger(area: str) -> FilteringBoundLogger:
    """A logger whose events carry `area`: storage, kafka, cluster…"""
    return cast(FilteringBoundLogger, structlog.get_logger(area=area))
