"""One Spark and one node for all tests of this folder; every test has topics and directories of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from support.node_process import NodeProcess

# What is done from time to time is done all the time: compaction and retention are waited for here.
EAGER: Final = {
    "PENSTOCK_BROKER__CLEANER_CHECK_MS": "200",
    "PENSTOCK_BROKER__CHECKPOINT_MS": "200",
    "PENSTOCK_BROKER__RETENTION_CHECK_MS": "200",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    pytest.importorskip("pyspark.sql", reason="the extra `spark` is not installed")
    from support.spark import driver as spark_driver

    session = spark_driver.make_spark()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def spark_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("spark-node"), has_http=True, environment=EAGER) as running:
        yield running
