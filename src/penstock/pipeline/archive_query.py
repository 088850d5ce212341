"""SQL over topics: names of tables that Spark does not know are names of topics.

Which topics a statement reads is not guessed from its text: Spark is asked to understand it, says which table it
misses, is given that topic, and asked again. Common table expressions, subqueries and joins are what they are in SQL.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# More tables than this no statement has; each costs a question to the cluster.
TOPICS_MAX: Final = 100

# Spark's pushing of filters into Python sources keeps those of one scan for the next (seen in 4.3): rows go missing
# when a table is read twice. What may be left unread is told by the option `narrow` instead. Of headers with one name
# the last one counts.
SETTINGS: Final = {
    "spark.sql.python.filterPushdown.enabled": "false",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
}

_IDENTIFIER: Final = re.compile(r"`((?:[^`]|``)*)`")


class QueryError(Exception):
    """One sentence on what is wrong with the statement."""


def query_topics(spark: SparkSession, sql: str, open_topic: Callable[[str], DataFrame]) -> DataFrame:
    """The statement's result. `open_topic` raises if there is no such topic."""
    from pyspark.errors import AnalysisException, ParseException

    # It prints every statement that it cannot understand, which here is how topics are found.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    seen: set[str] = set()
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
        if topic in seen or len(seen) == TOPICS_MAX:
            raise QueryError(f"table {missing} is not understood")
        seen.add(topic)
        open_topic(topic).createOrReplaceTempView("`" + topic.replace("`", "``") + "`")


def topic_of(relation: str) -> str:
    """A relation as Spark writes it, "`orders`". Raises `QueryError` where a topic's name was not quoted."""
    parts = [part.replace("``", "`") for part in _IDENTIFIER.findall(relation)]
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
    found = re.findall(r"^(?:[\w.]+\.)?([A-Z]\w*(?:Error|Exception)): (.+)$", text, re.MULTILINE)
    return str(found[-1][1]).strip() if found else _first_line(text)
