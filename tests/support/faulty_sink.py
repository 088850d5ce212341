"""The Spark sink with faults on order, for tests: `format("penstock-faulty")` with `kafka.test.fault`.

Each fault strikes once: a file in `kafka.test.directory` remembers it, over restarts too.

    raise-before   commit raises before it has done anything
    raise-after    commit raises after it has taken effect
    task           the first attempt of a task stages all of its rows and then raises
    worker         the first attempt of a task stages all of its rows and then dies with its process (SIGKILL)
    gate           commit waits for the file `go` before it begins
    hang-staged    commit never begins: all is staged, nothing is copied
    hang-copied    commit never ends: all is copied, and the transaction is open
    hang-committed commit has taken effect, and does not return
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from penstock.client.transactional_producer import TransactionalProducer
from penstock.pipeline.spark_sink import StreamWriter
from penstock.pipeline.spark_source import PenstockSource

SECONDS_MAX: Final = 120
STRUCK: Final = "struck"
GO: Final = "go"


class FaultySource(PenstockSource):
    @classmethod
    def name(cls) -> str:
        return "penstock-faulty"

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:  # noqa: N802  Spark's name
        options = self._sink_options(schema)
        return FaultyWriter(options, self.options["kafka.test.fault"], self.options["kafka.test.directory"])


class FaultyWriter(StreamWriter):
    def __init__(self, options: Any, fault: str, directory: str) -> None:
        super().__init__(options)
        self._fault = fault
        self._directory = directory

    def write(self, iterator: Iterator[Any]) -> Any:
        staged = super().write(iterator)
        if self._fault == "task" and self._strike():
            raise RuntimeError("a fault on order: the task")
        if self._fault == "worker" and self._strike():
            os.kill(os.getpid(), signal.SIGKILL)
        return staged

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803  Spark's name
        strikes = self._fault not in ("task", "worker") and (self._fault == "hang-copied" or self._strike())
        if not strikes:
            super().commit(messages, batchId)
            return
        match self._fault:
            case "raise-before":
                raise RuntimeError("a fault on order: before the commit")
            case "raise-after":
                super().commit(messages, batchId)
                raise RuntimeError("a fault on order: after the commit")
            case "gate":
                self._wait_for_go()
                super().commit(messages, batchId)
            case "hang-staged":
                self._wait_for_go()
            case "hang-committed":
                super().commit(messages, batchId)
                self._wait_for_go()
            case "hang-copied":
                self._hang_before_end()
                super().commit(messages, batchId)
            case _:
                raise AssertionError(self._fault)

    def _hang_before_end(self) -> None:
        true_commit = TransactionalProducer.commit

        async def commit(producer: TransactionalProducer) -> None:
            if self._strike():
                self._wait_for_go()
            await true_commit(producer)

        TransactionalProducer.commit = commit  # type: ignore[assignment,method-assign]

    def _strike(self) -> bool:
        """True the first time."""
        try:
            (Path(self._directory) / STRUCK).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _wait_for_go(self) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while not (Path(self._directory) / GO).exists():
            assert time.monotonic() < deadline, "nobody let it go"
            time.sleep(0.01)
