"""What a test of the exactly-once sink is made of: rows from topic to topic, a victim, and the moment of its death."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from penstock.domain.partitioner import partition_for_key
from support.node_process import NodeProcess
from support.spark import driver as spark_driver
from support.spark.topics import create, fill_numbered, read_all, read_settled, wait_until, written

ROWS: Final = 3_000
BATCH: Final = 1_000
PARTITIONS: Final = 3
STAGE: Final = "__spark_stage"
# Where the victim is when it dies: after the first staged row, and before the commit.
POINTS: Final = ("copying", "staging", "copied", "staged")


class Scene:
    """One run: topics of its own, a batch in which the victim dies, a point at which it does."""

    def __init__(self, node: NodeProcess, directory: Path, name: str, run: int) -> None:
        self.node = node
        self.directory = directory
        self.point = POINTS[run % len(POINTS)]
        # Every pair of a point and a batch, in the end.
        self.batch = (run + run // len(POINTS)) % (ROWS // BATCH)
        self.fault = f"hang:{self.point}:{self.batch}"
        self.source, self.target = f"{name}-{run}-in", f"{name}-{run}-out"
        create(node.kafka, self.source, 2)
        create(node.kafka, self.target, PARTITIONS)
        fill_numbered(node.kafka, self.source, ROWS, 2)
        self.staged_before = self._staged()

    def start(self, spark: Any) -> Any:
        topics = (self.source, self.target)
        return spark_driver.start_query(spark, self.node.kafka, *topics, str(self.directory), self.fault)

    def await_the_point(self, is_alive: Callable[[], bool]) -> int:
        """The process that is there."""
        struck = self.directory / "struck"
        wait_until(lambda: struck.exists() or not is_alive(), f"the point {self.point}")
        assert is_alive(), "it ended by itself"
        self.assert_between_stage_and_commit()
        return int(struck.read_text())

    def assert_between_stage_and_commit(self) -> None:
        earlier = self.batch * BATCH
        assert self._staged() - self.staged_before > earlier, "nothing of this batch is staged yet"
        committed = read_settled(self.node.kafka, self.target, earlier)
        assert len(committed) == earlier, "the batch is committed already"
        # Each batch before left a marker in each partition.
        copied = written(self.node.kafka, self.target) - earlier - self.batch * PARTITIONS
        wanted = {"staging": copied == 0, "staged": copied == 0, "copying": copied > 0, "copied": copied == BATCH}
        assert wanted[self.point], f"{copied} rows are copied at the point {self.point}"

    def let_go(self) -> None:
        (self.directory / "go").touch()

    def assert_each_row_once(self) -> None:
        wanted = sorted(
            (message.key(), message.value(), message.headers()) for message in read_all(self.node.kafka, self.source)
        )
        found = read_settled(self.node.kafka, self.target, ROWS)
        assert sorted((message.key(), message.value(), message.headers()) for message in found) == wanted
        assert len(wanted) == ROWS
        for message in found:
            assert message.partition() == partition_for_key(message.key() or b"", PARTITIONS)

    def _staged(self) -> int:
        try:
            return written(self.node.kafka, STAGE)
        except KeyError:
            return 0
