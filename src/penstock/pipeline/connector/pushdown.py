"""Conditions reach the source: `spark.read.format("penstock").load().where("offset >= 7")` reads from offset 7 on.

    from pyspark_penstock import enable_filter_pushdown

    enable_filter_pushdown()      once in the driver's process; `open_session` does it

Spark's own way for sources in Python keeps what it pushed with the table, up to and including 4.3: the next query on
the same DataFrame loses rows. Here every condition gets a table of its own. The relation that `load()` made is given
another `Table`, one that Spark asks back here for; it takes the conditions when a query is planned, and answers with
an ordinary scan of an ordinary Python table that has them as options. Spark evaluates every condition again.

All tables of one DataFrame are one snapshot (`plan`). Whatever goes wrong on the way leaves Spark's own scan,
which reads everything.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final

import msgspec
from py4j.protocol import Py4JError
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, datasource
from pyspark.sql.readwriter import DataFrameReader

from penstock.base.chance import SYSTEM_CHANCE
from penstock.net.errors import ClientError
from penstock.pipeline.connector.plan import take_snapshot
from penstock.pipeline.source.filters import narrow
from penstock.pipeline.source.options import OptionError, SourceOptions, TableSnapshot, parse_options
from penstock.pipeline.source.positions import run

FORMAT: Final = "penstock"
# Set to false, tables of this session are read whole.
SETTING: Final = "spark.penstock.filterPushdown.enabled"

# Of one DataFrame; conditions beyond these are planned each time.
NARROWED_TABLES_MAX: Final = 32

_logger = logging.getLogger(__name__)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_RELATION: Final = "org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation"
_TABLE: Final = "org.apache.spark.sql.execution.datasources.v2.python.PythonTable"
# With one column and one value each; the others narrow nothing.
_COMPARISONS: Final = frozenset({
    "EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual", "In",
})  # fmt: skip


def enable_filter_pushdown() -> None:
    """For all sessions of this process, whenever they were opened. Those of Spark Connect have no way in here."""
    if getattr(DataFrameReader.load, "is_pushing", False):
        return
    load = DataFrameReader.load

    @functools.wraps(load)
    def load_pushing(*arguments: Any, **options: Any) -> DataFrame:
        return pushing(load(*arguments, **options))

    load_pushing.is_pushing = True  # type: ignore[attr-defined]
    DataFrameReader.load = load_pushing  # type: ignore[method-assign]


def pushing(frame: DataFrame) -> DataFrame:
    """The same frame, if it is not one that `format("penstock")` made."""
    try:
        relation = _spark_part(frame, "_jdf").queryExecution().analyzed()
        if not _is_ours(relation) or frame.sparkSession.conf.get(SETTING, "true") == "false":
            return frame
        return _with_table(frame, relation)
    except (Py4JError, TypeError, AttributeError) as error:
        # These are Spark's inner parts, and another version may have others.
        _logger.warning("conditions do not reach the source in this Spark, tables are read whole: %s", error)
        return frame


def _is_ours(relation: Any) -> bool:
    if relation.getClass().getName() != _RELATION:
        return False
    table = relation.table()
    return bool(table.getClass().getName() == _TABLE and table.name() == FORMAT)


def _with_table(frame: DataFrame, relation: Any) -> DataFrame:
    session = frame.sparkSession
    gateway = _spark_part(session.sparkContext, "_gateway")
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    table = PushingTable(gateway, relation.table())
    changed = relation.copy(
        table,
        relation.output(),
        relation.catalog(),
        relation.identifier(),
        relation.options(),
        relation.timeTravelSpec(),
    )
    rows = gateway.jvm.org.apache.spark.sql.classic.Dataset.ofRows(_spark_part(session, "_jsparkSession"), changed)
    return DataFrame(rows, session)


def _spark_part(owner: Any, name: str) -> Any:
    """What pyspark keeps to itself: the JVM's side of an object. Raises `AttributeError` if it has none."""
    return getattr(owner, name)


class PushingTable:
    """Spark's interface `SupportsRead`, in Python. What is not here is as in the table that Spark made."""

    def __init__(self, gateway: Any, native: Any) -> None:
        self.gateway = gateway
        self.native = native
        self._identity = f"{FORMAT} {SYSTEM_CHANCE.uuid()}"
        self._snapshot: TableSnapshot | None = None
        # By all of their options: a Python table of Spark's, and those options as Spark wants them.
        self._narrowed: dict[frozenset[tuple[str, str]], tuple[Any, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.native, name)

    def newScanBuilder(self, options: Any) -> PushingScanBuilder:  # noqa: N802  Spark's name
        return PushingScanBuilder(self, options)

    def snapshot(self, options: SourceOptions) -> TableSnapshot:
        if self._snapshot is None:
            self._snapshot = options.snapshot or run(take_snapshot(options))
        return self._snapshot

    def scan_with(self, given: dict[str, str]) -> Any:
        """Planning one takes Spark two processes of Python, some 200 ms: the same conditions again have it done."""
        key = frozenset(given.items())
        table, options = self._narrowed.get(key) or self._make(given)
        if len(self._narrowed) < NARROWED_TABLES_MAX:
            self._narrowed[key] = table, options
        return table.newScanBuilder(options).build()

    def _make(self, given: dict[str, str]) -> tuple[Any, Any]:
        jvm = self.gateway.jvm
        properties = jvm.java.util.HashMap()
        for name, value in given.items():
            properties.put(name, value)
        source = jvm.org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2()
        source.setShortName(FORMAT)
        partitioning = self.gateway.new_array(jvm.org.apache.spark.sql.connector.expressions.Transform, 0)
        table = source.getTable(self.native.schema(), partitioning, properties)
        return table, jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(properties)

    # Spark compares tables to find out what it has in its cache. Another object comes as a reference to Java's side of
    # it, which answers with this text if it is one of ours.
    def toString(self) -> str:  # noqa: N802  Java's name
        return self._identity

    def hashCode(self) -> int:  # noqa: N802  Java's name
        return hash(self._identity) & 0x7FFFFFFF

    def equals(self, other: Any) -> bool:
        return other is not None and bool(other.toString() == self._identity)

    class Java:
        implements: ClassVar = ["org.apache.spark.sql.connector.catalog.SupportsRead"]


class PushingScanBuilder:
    """One scan of one query: the conditions first, the scan then."""

    def __init__(self, table: PushingTable, options: Any) -> None:
        self._table = table
        self._options = options
        self._filters = table.gateway.new_array(table.gateway.jvm.org.apache.spark.sql.sources.Filter, 0)

    def pushFilters(self, filters: Any) -> Any:  # noqa: N802  Spark's name
        self._filters = filters
        return filters

    def pushedFilters(self) -> Any:  # noqa: N802  Spark's name
        return self._filters

    def build(self) -> Any:
        try:
            return self._narrowed()
        except (OptionError, ClientError, OSError) as error:
            # Spark's own scan comes to the same end, and has a way to say so that people know.
            _logger.debug("left to Spark's own scan: %s", error)
            return self._table.native.newScanBuilder(self._options).build()

    def _narrowed(self) -> Any:
        given = dict(self._options.asCaseSensitiveMap())
        options = parse_options(given, is_streaming=False)
        narrowing = options.narrowing.within(narrow(python_filters(self._filters)))
        for name, value in (("narrow", narrowing), ("snapshot", self._table.snapshot(options))):
            given[name] = msgspec.json.encode(value).decode()
        return self._table.scan_with(given)

    class Java:
        implements: ClassVar = ["org.apache.spark.sql.connector.read.SupportsPushDownFilters"]


def python_filters(filters: Any) -> Iterator[datasource.Filter]:
    """Spark's filters of the JVM as those that it has for Python."""
    for wanted in filters:
        comparison = wanted.getClass().getSimpleName()
        if comparison not in _COMPARISONS:
            continue
        with suppress(OverflowError):
            value = (
                [_python_value(each) for each in wanted.values()]
                if comparison == "In"
                else _python_value(wanted.value())
            )
            yield getattr(datasource, comparison)((wanted.attribute(),), value)


def _python_value(value: Any) -> Any:
    """Moments are the only values that py4j leaves as they are; which class they have is a setting of Spark's."""
    if not hasattr(value, "getClass"):
        return value
    match value.getClass().getName():
        case "java.time.Instant":
            return _EPOCH + timedelta(seconds=value.getEpochSecond(), microseconds=value.getNano() // 1000)
        case "java.sql.Timestamp":
            return _EPOCH + timedelta(seconds=value.getTime() // 1000, microseconds=value.getNanos() // 1000)
        case _:
            return value
