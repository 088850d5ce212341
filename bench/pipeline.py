"""`make bench-pipeline`: rows through Spark's source and sink, beside a source that costs nothing but Spark.

All in one run, taking turns, on the cores of this machine; 100-byte values with 8-byte keys.

    source       topic → noop, against the synthetic source → noop (at least half of it, and 800,000 rows/s)
    sink         synthetic source → topic, exactly once (250,000 rows/s)
    partitions   processor time of a row in a topic of 64 partitions, against one of 1 (at most 1.5 times)
    micro-batch  triggers of 1,000 rows, topic → noop, against synthetic → noop (at most 1.3 times)
    archive      topic → Delta, exactly once (300,000 rows/s)
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench import machine, pipeline_archive, pipeline_load, quiet, report, result_files
from bench.pipeline_load import VALUE_BYTES, timed
from bench.targets import Target, penstock

ROOT: Final = Path(__file__).parents[1]
NAME: Final = "pipeline"
ROWS: Final = 2_000_000
ROUNDS: Final = 5
PARTITIONS: Final = 4
MANY: Final = 64
TRIGGER_ROWS: Final = 1_000
TRIGGERS: Final = 40
TRIGGERS_SKIPPED: Final = 8
QUIET_SECONDS_MAX: Final = 60.0

# By case: the figure that is judged, its goal, and whether more is better.
GOALS: Final[dict[str, tuple[str, float, bool]]] = {
    "source": ("rows_per_second", 800_000, True),
    "source share": ("share", 0.5, True),
    "sink": ("rows_per_second", 250_000, True),
    "partitions": ("ratio", 1.5, False),
    "micro-batch": ("ratio", 1.3, False),
    "archive": ("rows_per_second", 300_000, True),
}


class Run:
    def __init__(self, spark: Any, node: Target, directory: Path, *, rows: int, rounds: int, patience: float) -> None:
        self._spark = spark
        self._node = node
        self._directory = directory
        self._rows = rows
        self._rounds = rounds
        self._patience_seconds = patience
        self.figures: dict[str, dict[str, Any]] = {}

    def all(self) -> None:
        for name, partitions in (("one", 1), ("some", PARTITIONS), ("many", MANY)):
            asyncio.run(pipeline_load.fill(self._node, name, partitions=partitions, rows=self._rows))
        self._source()
        self._partitions()
        self._sink()
        self._micro_batch()
        self._archive()

    def _turns(self, cases: dict[str, Callable[[], None]]) -> dict[str, list[dict[str, float]]]:
        """One round unmeasured, then in turn, so that what slows the machine down slows all of them."""
        measured: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
        for number in range(self._rounds + 1):
            for name, work in cases.items():
                quiet.wait_for_quiet(self._patience_seconds)
                took = timed(work, self._node)
                if number > 0:
                    measured[name].append(took)
                    rate = self._rows / took["seconds"]
                    print(f"{name}: {rate:,.0f} rows/s, {took['cpu_seconds']:.1f} s of processors", flush=True)
        return measured

    def _source(self) -> None:
        spark, node, rows = self._spark, self._node, self._rows
        measured = self._turns(
            {
                "synthetic": lambda: pipeline_load.to_nothing(
                    pipeline_load.synthetic_frame(spark, rows=rows, partitions=PARTITIONS)
                ),
                "source": lambda: pipeline_load.to_nothing(pipeline_load.topic_frame(spark, node, "some")),
            }
        )
        shares = [
            synthetic["seconds"] / ours["seconds"]
            for synthetic, ours in zip(measured["synthetic"], measured["source"], strict=True)
        ]
        self._note("source", measured["source"])
        self._note("synthetic", measured["synthetic"])
        self.figures["source share"] = {"share": round(statistics.median(shares), 3)}

    def _partitions(self) -> None:
        spark, node = self._spark, self._node
        # As many tasks for the one partition as cores, so that both use the machine.
        measured = self._turns(
            {
                "one partition": lambda: pipeline_load.to_nothing(
                    pipeline_load.topic_frame(spark, node, "one", minPartitions=str(PARTITIONS))
                ),
                "64 partitions": lambda: pipeline_load.to_nothing(pipeline_load.topic_frame(spark, node, "many")),
            }
        )
        one, many = (_median(measured[name], "cpu_seconds") for name in ("one partition", "64 partitions"))
        one_wall, many_wall = (_median(measured[name], "seconds") for name in ("one partition", "64 partitions"))
        self.figures["partitions"] = {
            "ratio": round(many / one, 3),
            "ratio_of_seconds": round(many_wall / one_wall, 3),
            "microseconds_per_row_at_1": round(one / self._rows * 1e6, 3),
            "microseconds_per_row_at_64": round(many / self._rows * 1e6, 3),
        }

    def _sink(self) -> None:
        spark, node, rows = self._spark, self._node, self._rows
        asyncio.run(pipeline_load.create(node, "written", PARTITIONS))
        frame = pipeline_load.synthetic_frame(spark, rows=rows, partitions=PARTITIONS)
        self._note("sink", self._turns({"sink": lambda: pipeline_load.to_topic(frame, node, "written")})["sink"])

    def _micro_batch(self) -> None:
        rows = TRIGGER_ROWS * TRIGGERS
        ours = (
            self._spark.readStream.format("penstock")
            .option("kafka.bootstrap.servers", self._node.bootstrap)
            .option("subscribe", "short")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", str(TRIGGER_ROWS))
        )
        asyncio.run(pipeline_load.fill(self._node, "short", partitions=1, rows=rows))
        options = {"rows": str(rows), "rowsPerTrigger": str(TRIGGER_ROWS), "valueBytes": str(VALUE_BYTES)}
        synthetic = self._spark.readStream.format("synthetic").options(**options)
        found: dict[str, list[float]] = {"synthetic": [], "ours": []}
        for number in range(2):
            for name, source in (("synthetic", synthetic), ("ours", ours)):
                quiet.wait_for_quiet(self._patience_seconds)
                directory = self._directory / f"checkpoint-{name}-{number}"
                found[name] += pipeline_load.micro_batches(source.load(), directory, skipped=TRIGGERS_SKIPPED)
        medians = {name: statistics.median(durations) for name, durations in found.items()}
        self.figures["micro-batch"] = {
            "ratio": round(medians["ours"] / medians["synthetic"], 3),
            "milliseconds": medians["ours"],
            "milliseconds_synthetic": medians["synthetic"],
        }

    def _archive(self) -> None:
        def work() -> None:
            assert pipeline_archive.archive(spark, node.bootstrap, "some", directory) == self._rows

        spark, node, directory = self._spark, self._node, self._directory / "archive"
        self._note("archive", self._turns({"archive": work})["archive"])

    def _note(self, name: str, measured: list[dict[str, float]]) -> None:
        self.figures[name] = {
            "rows_per_second": round(self._rows / _median(measured, "seconds")),
            "cpu_microseconds_per_row": round(_median(measured, "cpu_seconds") / self._rows * 1e6, 3),
            "rounds": [round(self._rows / took["seconds"]) for took in measured],
        }


def _median(measured: list[dict[str, float]], name: str) -> float:
    return statistics.median(took[name] for took in measured)


def open_spark() -> Any:
    import pyspark.cloudpickle

    from bench import pipeline_synthetic
    from penstock.pipeline.session.spark import open_session

    # Spark's workers do not have this folder on their path.
    pyspark.cloudpickle.register_pickle_by_value(pipeline_synthetic)  # type: ignore[no-untyped-call]
    spark = open_session("bench", master="local[2]", conf={"spark.driver.memory": "2g"})
    spark.dataSource.register(pipeline_synthetic.SyntheticSource)
    return spark


def verdicts(figures: dict[str, dict[str, Any]]) -> list[str]:
    lines = []
    for name, (figure, goal, more_is_better) in GOALS.items():
        if name not in figures:
            lines.append(f"{name}: not measured")
            continue
        value = figures[name][figure]
        is_met = value >= goal if more_is_better else value <= goal
        lines.append(f"{name}: {figure} {value:,}, goal {goal:,} {'met' if is_met else 'MISSED'}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--patience", type=float, default=QUIET_SECONDS_MAX, help="seconds to wait for a quiet machine")
    parser.add_argument("--no-save", action="store_true")
    arguments = parser.parse_args()
    (ROOT / "build").mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="pipeline-", dir=ROOT / "build"))
    try:
        facts = machine.facts(directory)
        print(report.headline(facts), flush=True)
        with penstock(directory) as node:
            run = Run(
                open_spark(), node, directory, rows=arguments.rows, rounds=arguments.rounds, patience=arguments.patience
            )
            run.all()
    finally:
        shutil.rmtree(directory)
    print("\n".join(verdicts(run.figures)))
    if not arguments.no_save:
        result_files.save(NAME, {"machine": facts, "rows": arguments.rows, "figures": run.figures})


if __name__ == "__main__":
    main()
