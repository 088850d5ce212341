"""One way to a Spark session for every command, job and test: Java found, sane settings, a quiet start.

    spark = open_session("totals")                              on this machine, all cores
    spark = open_session("totals", master="spark://host:7077")  on a cluster
    spark = open_session("totals", conf={"spark.driver.memory": "4g"})

Settings are defaults: what `conf`, a `spark-defaults.conf` for a cluster or `spark-submit` say goes before them.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.base.slow_waits import told_if_slow
from penstock.pipeline.session.java_home import JavaMissingError, find_java_home
from penstock.pipeline.session.stderr import QuietStart

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_MASTER: Final = "local[*]"
# The first whose Python sources take limits and AvailableNow.
PYSPARK_OLDEST: Final = (4, 2)
LOOPBACK: Final = "127.0.0.1"
_MEGABYTE: Final = 1024 * 1024
_DRIVER_MEGABYTES_MIN: Final = 512
_DRIVER_MEGABYTES_MAX: Final = 2048
# Set by spark-submit: there is a JVM already, with a master and a memory of its own.
_GATEWAY: Final = "PYSPARK_GATEWAY_PORT"


class SparkStartError(Exception):
    """One sentence for whoever wanted a Spark."""


def open_session(
    name: str,
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    log_level: str = "ERROR",
    is_quiet: bool = True,
) -> SparkSession:
    """The process's session, made if there is none yet. Blocking: some seconds the first time.

    `master` None is what `spark-submit` or `conf` say, else this machine. Raises `SparkStartError`.
    """
    check_spark()
    return start_told(
        lambda: _open_session(name, master=master, conf=conf, log_level=log_level, is_quiet=is_quiet), told_if_slow
    )


def start_told(
    start: Callable[[], SparkSession], told_if_slow: Callable[[str], AbstractContextManager[None]]
) -> SparkSession:
    with told_if_slow("Spark is starting, which takes some seconds"):
        return start()


def _open_session(
    name: str, *, master: str | None, conf: Mapping[str, str] | None, log_level: str, is_quiet: bool
) -> SparkSession:
    from pyspark.sql import SparkSession

    from penstock.pipeline.connector.pushdown import enable_filter_pushdown

    enable_filter_pushdown()
    settings = session_settings(name, master=master, conf=conf or {}, environment=os.environ)
    active = SparkSession.getActiveSession()
    if active is None:
        prepare_environment(settings)
    builder = SparkSession.builder.appName(name)
    for key, value in settings.items():
        # What a running session was started with stays as it is; what can still be set, is.
        if active is None or key.startswith("spark.sql."):
            builder = builder.config(key, value)
    if active is not None or not is_quiet or _GATEWAY in os.environ:
        session = builder.getOrCreate()
    else:
        with QuietStart():
            session = builder.getOrCreate()
            session.sparkContext.setLogLevel(log_level)
    session.sparkContext.setLogLevel(log_level)
    return session


def check_spark() -> None:
    """Raises the sentence that says what to install."""
    missing = [module for module in ("pyspark", "pyarrow", "pandas") if importlib.util.find_spec(module) is None]
    if missing:
        raise SparkStartError(f'Spark is not installed ({missing[0]} is missing): pip install "penstock[spark]"')
    found = importlib.metadata.version("pyspark")
    if tuple(int(number) for number in found.split(".")[:2]) < PYSPARK_OLDEST:
        oldest = ".".join(map(str, PYSPARK_OLDEST))
        raise SparkStartError(f'pyspark {found} is too old, {oldest} is needed: pip install -U "penstock[spark]"')


def session_settings(
    name: str, *, master: str | None, conf: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, str]:
    """All settings that the session gets; what `conf` says overrides ours."""
    settings = {"spark.app.name": name, "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    settings |= {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    chosen = master or conf.get("spark.master")
    if chosen is None and _GATEWAY not in environment:
        chosen = LOCAL_MASTER
    if chosen is not None:
        settings["spark.master"] = chosen
    if chosen is not None and chosen.startswith("local"):
        settings |= _local_settings(chosen)
    elif chosen is not None and _is_loopback(chosen):
        settings |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    return settings | dict(conf) | ({"spark.master": chosen} if chosen is not None else {})


def prepare_environment(settings: Mapping[str, str]) -> None:
    """What Spark's launcher and its Python workers read from the environment; raises `SparkStartError`."""
    if _GATEWAY in os.environ:
        return
    try:
        os.environ["JAVA_HOME"] = str(find_java_home(os.environ))
    except JavaMissingError as error:
        raise SparkStartError(str(error)) from error
    master = settings.get("spark.master", LOCAL_MASTER)
    if master.startswith("local") or _is_loopback(master):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
        # The workers must be this very Python, or they know nothing of Penstock.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def _local_settings(master: str) -> dict[str, str]:
    return {
        "spark.driver.memory": f"{_driver_megabytes()}m",
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        # Two hundred, which is Spark's own, are for a cluster: each costs some milliseconds of every micro-batch.
        "spark.sql.shuffle.partitions": str(_local_cores(master)),
        # Not into the directory that the command happens to be run in.
        "spark.sql.warehouse.dir": (Path(tempfile.gettempdir()) / f"penstock-warehouse-{os.getpid()}").as_uri(),
    }


def _local_cores(master: str) -> int:
    inside = master.partition("[")[2].partition("]")[0].partition(",")[0]
    if inside.isdigit():
        return max(2, int(inside))
    return max(2, os.cpu_count() or 2) if inside == "*" else 2


def _driver_megabytes() -> int:
    """A quarter of the machine, within reason."""
    megabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _MEGABYTE
    return min(max(megabytes // 4, _DRIVER_MEGABYTES_MIN), _DRIVER_MEGABYTES_MAX)


def _is_loopback(master: str) -> bool:
    return master.startswith(("spark://127.0.0.1:", "spark://localhost:"))
