"""The Spark sink with faults on order, for tests: `format("penstock-faulty")` with `kafka.test.fault`.

Each fault strikes once: a file in `kafka.test.directory` remembers it, over restarts too, and says which process
it was.

    raise-before   commit raises before it has done anything
    raise-after    commit raises after it has taken effect
    task           the first attempt of a task stages all of its rows and then raises
    worker         the first attempt of a task stages all of its rows and then dies with its process (SIGKILL)
    hang:POINT:N   batch N comes as far as the point and stays there until the file `go` is there, or it is killed

Points, in the order in which a batch passes them:

    staging        a task has staged some of its rows
    staged         all tasks are done, the commit has not begun
    copying        some rows are copied, in an open transaction
    copied         all rows are copied and the fence is set, the transaction is open
    committed      the commit has taken effect, and Spark does not know yet
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pyspark import TaskContext

from penstock.client.kafka.transactional_producer import TransactionalProducer
from penstock.pipeline.connector.sink import StreamWriter
from penstock.pipeline.connector.source import PenstockSource
from penstock.pipeline.sink.stage_copy import StageCopy
from penstock.pipeline.sink.stage_write import StageWriter

SECONDS_MAX: Final = 120
STRUCK: Final = "struck"
GO: Final = "go"
# So that a task stages more than once.
CHUNK_ROWS_MAX: Final = 100


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
        name, _, rest = fault.partition(":")
        self._fault = name
        self._point, _, batch = rest.partition(":")
        self._batch = int(batch or 0)
        self._directory = directory

    def write(self, iterator: Iterator[Any], **_others: Any) -> Any:
        context = TaskContext.get()
        batch = None if context is None else context.getLocalProperty("streaming.sql.batchId")
        if self._point == "staging" and batch == str(self._batch):
            return super().write(iterator, stage=self._hanging_stage())
        staged = super().write(iterator)
        if self._fault == "task" and self._strike():
            raise RuntimeError("a fault on order: the task")
        if self._fault == "worker" and self._strike():
            os.kill(os.getpid(), signal.SIGKILL)
        return staged

    def commit(self, messages: Any, batchId: int, **_others: Any) -> None:  # noqa: N803  Spark's name
        if self._fault == "raise-before" and self._strike():
            raise RuntimeError("a fault on order: before the commit")
        if self._fault != "hang" or batchId != self._batch:
            super().commit(messages, batchId)
        else:
            self._commit_and_hang(messages, batchId)
        if self._fault == "raise-after" and self._strike():
            raise RuntimeError("a fault on order: after the commit")

    def _commit_and_hang(self, messages: Any, batch_id: int) -> None:
        if self._point == "staged":
            self._hang()
        super().commit(messages, batch_id, copy=self._hanging_copy())
        if self._point == "committed":
            self._hang()

    # the points

    def _hanging_stage(self) -> type[StageWriter]:
        # What goes to a worker by value takes along what functions name, not what the bodies of classes in them do.
        hang, rows_max = self._hang, CHUNK_ROWS_MAX

        class HangingStage(StageWriter):
            chunk_rows_max = rows_max

            async def write(self, batches: Any) -> None:
                await super().write(batches)
                # Durable, as the point says.
                await self.finish()
                hang()

        return HangingStage

    def _hanging_copy(self) -> type[StageCopy]:
        point, hang = self._point, self._hang

        class HangingProducer(TransactionalProducer):
            async def send(self, batches: Any) -> list[int]:
                offsets = await super().send(batches)
                if point == "copying":
                    hang()
                return offsets

            async def commit(self) -> None:
                if point == "copied":
                    hang()
                await super().commit()

        class HangingCopy(StageCopy):
            producer_type = HangingProducer

        return HangingCopy

    def _strike(self) -> bool:
        """True the first time."""
        path = Path(self._directory) / STRUCK
        mine = path.with_name(f"{STRUCK}-{os.getpid()}-{time.monotonic_ns()}")
        mine.write_text(str(os.getpid()))
        try:
            # Not seen before it says who it was.
            os.link(mine, path)
        except FileExistsError:
            return False
        return True

    def _hang(self) -> None:
        if not self._strike():
            return
        deadline = time.monotonic() + SECONDS_MAX
        while not (Path(self._directory) / GO).exists():
            assert time.monotonic() < deadline, "nobody let it go"
            time.sleep(0.01)
