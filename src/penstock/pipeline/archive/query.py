"""SQL over topics: names of tables that Spark does not know are names of topics.

Which topics a statement reads is not guessed from its text: Spark is asked to understand it, says which table it
misses, is given that topic, and asked again. Common table expressions, subqueries and joins are what they are in SQL.

Names in SQL are the same in capitals, those of topics are not. A statement with two topics that differ in nothing else
is understood to the letter, columns included; every other one as people write it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.client.errors import TopicMissingError
from penstock.pipeline.sql import command_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# More tables than this no statement has; each costs a question to the cluster.
TOPICS_MAX: Final = 100

# Of headers with one name the last one counts.
SETTINGS: Final = {"spark.sql.mapKeyDedupPolicy": "LAST_WIN"}

# Commands that change nothing.
LOOKING: Final = frozenset({"DESCRIBE", "DESC", "SHOW"})
TO_THE_LETTER: Final = "spark.sql.caseSensitive"

_IDENTIFIER: Final = re.compile(r"`((?:[^`]|``)*)`")


class QueryError(Exception):
    """One sentence on what is wrong with the statement."""


def query_topics(spark: SparkSession, sql: str, open_topic: Callable[[str], DataFrame]) -> DataFrame:
    """The statement's result. `open_topic` raises if there is no such topic."""
    quiet_statements()
    _check_is_query(spark, sql)
    views: dict[str, DataFrame] = {}
    setting = spark.conf.get(TO_THE_LETTER, "false")
    try:
        return _understand(spark, sql, open_topic, views)
    finally:
        spark.conf.set(TO_THE_LETTER, setting or "false")


def quiet_statements() -> None:
    """PySpark prints every statement that it cannot understand, which here is how topics are found."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def _understand(
    spark: SparkSession, sql: str, open_topic: Callable[[str], DataFrame], views: dict[str, DataFrame]
) -> DataFrame:
    from pyspark.errors import AnalysisException, ParseException

    while True:
        try:
            return spark.sql(sql)
        except ParseException as error:
            raise QueryError(_parse_sentence(error.getCondition(), error.getMessageParameters(), str(error))) from error
        except AnalysisException as error:
            missing = (error.getMessageParameters() or {}).get("relationName", "")
            if error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND" or not missing:
                raise QueryError(_first_line(str(error))) from error
            topic = topic_of(missing)
        if topic in views or len(views) == TOPICS_MAX:
            raise QueryError(f"table {missing} is not understood")
        views[topic] = open_topic(topic)
        # Before it has a name: one that does not count capitals would be its namesake's as well.
        if any(_exists(name, open_topic) for name in _spellings(sql, topic)):
            spark.conf.set(TO_THE_LETTER, "true")
        for name, frame in views.items():
            frame.createOrReplaceTempView("`" + name.replace("`", "``") + "`")


def _check_is_query(spark: SparkSession, sql: str) -> None:
    """A command takes effect as soon as Spark hears it, somewhere: never on a topic."""
    from pyspark.errors import ParseException

    try:
        command = command_of(spark, sql)
    except ParseException as error:
        raise QueryError(_parse_sentence(error.getCondition(), error.getMessageParameters(), str(error))) from error
    if command is not None and command not in LOOKING:
        raise QueryError(f"it is a command ({command} …): topics can be asked, by SELECT, and nothing else")


def _spellings(sql: str, topic: str) -> list[str]:
    """How else the statement writes that name."""
    found = re.findall(rf"(?<!\w){re.escape(topic)}(?!\w)", sql, re.IGNORECASE)
    return sorted(set(found) - {topic})


def _exists(topic: str, open_topic: Callable[[str], DataFrame]) -> bool:
    try:
        open_topic(topic)
    except TopicMissingError:
        return False
    return True


def topic_of(relation: str) -> str:
    """A relation as Spark writes it, "`orders`". Raises `QueryError` where a topic's name was not quoted."""
    parts = [part.replace("``", "`") for part in _IDENTIFIER.findall(relation)]
    # Where Spark looks for what has no other place.
    if parts[:2] == ["spark_catalog", "default"]:
        parts = parts[2:]
    if len(parts) != 1:
        name = ".".join(parts)
        raise QueryError(f"a topic's name with dots is written in backquotes: `{name}`")
    return str(parts[0])


def _parse_sentence(condition: str | None, parameters: dict[str, str] | None, text: str) -> str:
    if condition == "INVALID_IDENTIFIER":
        name = (parameters or {}).get("ident", "")
        return f"a topic's name with dashes is written in backquotes: `{name}`"
    return _first_line(text)


def _first_line(text: str) -> str:
    """Without Spark's class of error in front, and the plan behind."""
    line = next((line for line in text.splitlines() if line.strip()), "it is not understood")
    return re.sub(r"\s*SQLSTATE: \w+.*$", "", re.sub(r"^\[[A-Z0-9_.]+\]\s*", "", line)).strip()


def python_error(text: str) -> str:
    """Of an error that Spark tells at length, what Python said last: the sentence of whoever raised it."""
    # delta-rs writes the cause of a cause into a line of its own, with a coloured arrow.
    text = re.sub(r"\s*\n\s*(?:\x1b\[\d+m)?↳(?:\x1b\[0m)?\s*", ": ", text)
    found = re.findall(r"^(?:[\w.]+\.)?([A-Z]\w*(?:Error|Exception)): (.+)$", text, re.MULTILINE)
    return str(found[-1][1]).strip() if found else _first_line(text)
