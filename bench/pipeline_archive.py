"""The archive's part of `bench.pipeline`: a topic into a Delta table, through Spark, as `penstock archive --once` does.

A warm run goes first, into a table of its own: the first batch of a session starts Python workers and compiles, which a
job that runs for days does once.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

from penstock.pipeline.archive.job import ArchiveRequest, start_archive
from penstock.pipeline.archive.snapshot import open_archive

SECONDS_MAX: Final = 600
ROWS_PER_COMMIT: Final = 1_000_000


def archive(spark: Any, bootstrap: str, topic: str, path: Path, *, rows_per_commit: int = ROWS_PER_COMMIT) -> int:
    """All of the topic into a new table; how many rows it has then. What was there is removed first."""
    shutil.rmtree(path, ignore_errors=True)
    request = ArchiveRequest(bootstrap, (topic,), str(path), is_once=True, rows_per_batch=rows_per_commit)
    run = start_archive(spark, request)
    try:
        assert run.query.awaitTermination(SECONDS_MAX)
        run.report()
    finally:
        run.stop()
    snapshot = open_archive(str(path))
    rows = 0 if snapshot is None else sum(file.row_count for file in snapshot.files)
    assert rows == run.row_count, (rows, run.row_count)
    return rows
