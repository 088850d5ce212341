"""Ctrl-C ends an archive in order, though Spark takes the signal for itself when it starts. Without Spark."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark.sql", reason="the extra `spark` is not installed")
pytest.importorskip("deltalake", reason="the extra `spark` is not installed")

from penstock.cli.work import archive as archive_work


class FakeRun:
    """A run that would never end by itself."""

    row_count = 7

    def __init__(self) -> None:
        self.is_stopped = False
        self.query = SimpleNamespace(isActive=True, awaitTermination=self._await, exception=lambda: None)

    def _await(self, _seconds: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    def report(self) -> None:
        return None

    def stop(self) -> None:
        self.is_stopped = True


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_ctrl_c_ends_an_archive_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    def open_session(*_: Any, **__: Any) -> Any:
        def interrupt(_number: int, _frame: Any) -> None:
            raise KeyboardInterrupt

        signal.signal(signal.SIGINT, interrupt)
        return SimpleNamespace(stop=lambda: None)

    run = FakeRun()
    means = archive_work.Means(open_session, lambda _spark, _request: run, lambda _bootstrap: None)  # type: ignore[arg-type,return-value]
    request = archive_work.request_of(
        "127.0.0.1:1", ["orders"], "there", every="1s", rows=1, schema=None, value_format="json",
        compact_every=0, group="archive", is_once=False, allows_loss=False,
    )  # fmt: skip
    archive_work.run(request, keep=None, master=None, as_json=False, means=means)
    assert run.is_stopped
    told = capsys.readouterr()
    assert "7 messages archived" in told.out + told.err
