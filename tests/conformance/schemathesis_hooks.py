"""Loaded by schemathesis itself: nobody waits a minute for a message that never comes."""

from __future__ import annotations

from typing import Any

import schemathesis


@schemathesis.hook
def before_call(_context: Any, case: Any, _kwargs: Any) -> None:
    if isinstance(case.body, dict) and isinstance(case.body.get("wait_ms"), int | float):
        case.body["wait_ms"] = min(case.body["wait_ms"], 10)
