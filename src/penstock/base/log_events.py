"""Log events with fields: `log.info("segment rolled", partition=..., base_offset=..., bytes=...)`.

Text for people at a terminal, JSON lines for collectors. Everything goes to standard error: standard output belongs
to the line that says the node is ready, and to the tables of the command line.
"""

from __future__ import annotations

import logging
import sys
from typing import Literal, cast

import structlog
from structlog.typing import FilteringBoundLogger, Processor

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


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
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )


def get_logger(area: str) -> FilteringBoundLogger:
    """A logger whose events carry `area`: storage, kafka, cluster…"""
    return cast(FilteringBoundLogger, structlog.get_logger(area=area))
