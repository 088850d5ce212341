"""The settings of a session, without a Spark."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from typing import Any

import pytest

from penstock.pipeline.session.spark import SparkStartError, check_spark, session_settings


def settings(master: str | None = None, environment: dict[str, str] | None = None, **conf: str) -> dict[str, str]:
    named = {name.replace("_", "."): value for name, value in conf.items()}
    return session_settings("name", master=master, conf=named, environment=environment or {})


def test_this_machine_is_the_default() -> None:
    found = settings()
    assert found["spark.master"] == "local[*]"
    assert found["spark.driver.host"] == "127.0.0.1"
    assert int(found["spark.sql.shuffle.partitions"]) >= 2


def test_a_master_that_is_named_goes_before_all_others() -> None:
    assert settings("local[3,2]", spark_master="yarn")["spark.master"] == "local[3,2]"
    assert settings("local[3,2]")["spark.sql.shuffle.partitions"] == "3"
    assert settings(spark_master="yarn")["spark.master"] == "yarn"


def test_a_cluster_keeps_its_own_settings() -> None:
    found = settings("spark://somewhere:7077")
    assert not {"spark.driver.memory", "spark.driver.host", "spark.sql.shuffle.partitions"} & set(found)
    assert settings("spark://127.0.0.1:7077")["spark.driver.host"] == "127.0.0.1"


def test_spark_submit_decides_itself() -> None:
    found = settings(environment={"PYSPARK_GATEWAY_PORT": "1"})
    assert not {"spark.master", "spark.driver.memory"} & set(found)


def test_what_is_said_goes_before_the_defaults() -> None:
    assert settings(spark_driver_memory="9g")["spark.driver.memory"] == "9g"


def test_a_missing_spark_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec

    def find(name: str, *arguments: Any) -> Any:
        return None if name == "pyspark" else found(name, *arguments)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    with pytest.raises(SparkStartError, match=r'pyspark is missing\): pip install "penstock\[spark\]"'):
        check_spark()


def test_an_old_spark_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "3.5.1")
    with pytest.raises(SparkStartError, match=r"pyspark 3.5.1 is too old, 4.2 is needed"):
        check_spark()
