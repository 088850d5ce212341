from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

from penstock.base.slow_waits import SlowWaits
from penstock.pipeline.session.spark import start_told

# While Spark starts, standard error leads elsewhere: what a command says meanwhile must be seen all the same.
WHILE_SPARK_STARTS = """
import os
from penstock.base import slow_waits
from penstock.cli.wait_lines import waits_told
from penstock.pipeline.session.stderr import QuietStart
with waits_told(as_json=False), QuietStart():
    os.write(2, b"chatter of a start that went well\\n")
    slow_waits._waits._tell("Spark is starting")
"""


class Alarm:
    def cancel(self) -> None: ...


def test_start_of_spark_is_told_while_it_lasts() -> None:
    events: list[str] = []
    rings: list[Callable[[], None]] = []

    def set_alarm(_seconds: float, ring: Callable[[], None]) -> Alarm:
        rings.append(ring)
        return Alarm()

    def start() -> Any:
        rings[0]()
        events.append("started")
        return "session"

    assert start_told(start, SlowWaits(events.append, set_alarm).told_if_slow) == "session"  # type: ignore[comparison-overlap]
    assert events == ["Spark is starting, which takes some seconds", "started"]


def test_line_is_seen_while_standard_error_leads_elsewhere() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WHILE_SPARK_STARTS], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == "penstock: Spark is starting\n"
