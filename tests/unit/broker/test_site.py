"""The value that every part is handed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError

import pytest

from penstock.base.clock import ManualClock
from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.broker.site import Site


def make_site() -> Site:
    return Site(clock=ManualClock(), tasks=TaskSupervisor(get_logger("test")), readers=ThreadPoolExecutor(1))


def test_nobody_changes_where_others_work() -> None:
    site = make_site()
    with pytest.raises(FrozenInstanceError):
        site.node_id = 2  # type: ignore[misc]
    with pytest.raises(AttributeError):
        site.config.broker = None  # type: ignore[misc, assignment]


def test_two_sites_do_not_share_their_metrics() -> None:
    """Two nodes in one process, as in a test, would register the same names twice."""
    assert make_site().metrics is not make_site().metrics
