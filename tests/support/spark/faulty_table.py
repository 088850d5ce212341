"""The table sink with faults on order, for tests: `format("penstock-table-faulty")`.

The file `<path>.fault` beside the table says which and in which batch, such as `raise-after 1`; it strikes once and
becomes `<path>.struck`.

    raise-before   commit raises before it has done anything: files are written, the table does not have them
    raise-after    commit raises after it has taken effect: the table has the rows, and Spark does not know
    hang-before    as raise-before, but it stays there until it is killed
    hang-after     as raise-after, but it stays there until it is killed

As a program it archives one topic in small commits until it has all, or is killed:

    python faulty_table.py BOOTSTRAP TOPIC PATH
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from penstock.pipeline.archive.job import ArchiveRequest, ArchiveRun, start_archive
from penstock.pipeline.table.writer import TableSink, TableStreamWriter

SECONDS_MAX: Final = 180
FORMAT: Final = "penstock-table-faulty"
ROWS_PER_BATCH: Final = 500


class FaultyTableSink(TableSink):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamWriter(self, schema: Any, overwrite: bool) -> TableStreamWriter:  # noqa: N802  Spark's name
        writer = super().streamWriter(schema, overwrite)
        return FaultyTableWriter(writer._options, writer._schema_json, replaces=overwrite)


class FaultyTableWriter(TableStreamWriter):
    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803  Spark's name
        order, struck = Path(f"{self._options.path}.fault"), Path(f"{self._options.path}.struck")
        name, _, number = order.read_text().partition(" ") if order.exists() else ("", "", "0")
        is_due = bool(name) and int(number) == batchId
        if is_due and name.endswith("before"):
            self._strike(order, struck, name)
        super().commit(messages, batchId)
        if is_due:
            self._strike(order, struck, name)

    def _strike(self, order: Path, struck: Path, name: str) -> None:
        order.rename(struck)
        if name.startswith("hang"):
            time.sleep(SECONDS_MAX)
        raise RuntimeError("a fault on order")


def register(spark: Any) -> None:
    import pyspark.cloudpickle

    # Its workers do not have the tests on their path.
    pyspark.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    spark.dataSource.register(FaultyTableSink)


def start(spark: Any, bootstrap: str, topic: str, path: str, **options: Any) -> ArchiveRun:
    register(spark)
    request = ArchiveRequest(
        bootstrap, (topic,), path, is_once=True, rows_per_batch=ROWS_PER_BATCH, sink=FORMAT, **options
    )
    return start_archive(spark, request)


def run_archive(log_path: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """This file as a process, in a group of its own: the JVM, which is the driver, dies with it."""
    with log_path.open("ab") as log:
        command = [sys.executable, __file__, *arguments]
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from penstock.pipeline.session.spark import open_session
    from support.spark import faulty_table  # noqa: PLW0406  by its real name, which its workers ask for

    session = open_session("archive", master="local[2]", conf={"spark.driver.memory": "512m"}, is_quiet=False)
    run = faulty_table.start(session, *sys.argv[1:])
    assert run.query.awaitTermination(SECONDS_MAX)
    run.report()
