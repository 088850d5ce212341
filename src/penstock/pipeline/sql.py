"""SQL that a file gives, and SQL that is made of its names.

A step is a query. A command (CREATE, INSERT, SET …) takes effect as soon as Spark is given it, in `validate` too, so
that every statement is parsed before, which changes nothing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What may stand behind a statement, from its last semicolon on: more of them, blanks and comments.
_TAIL: Final = re.compile(r";(?:[;\s]|--[^\n]*(?:\n|$)|/\*.*?\*/)*$", re.DOTALL)
_COMMENTS: Final = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*", re.DOTALL)
_WORD: Final = re.compile(r"[A-Za-z]+")


def quoted(name: str) -> str:
    """A column's name wherever SQL, a schema or Spark itself reads one, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def command_of(spark: SparkSession, statement: str) -> str | None:
    """None: it is a query. Otherwise the word that the command begins with. Raises what Spark has against a statement
    that is neither."""
    from pyspark.errors import ParseException

    parser: Any = spark._jsparkSession.sessionState().sqlParser()  # noqa: SLF001  it has no door of its own
    parser.parsePlan(statement)
    try:
        parser.parseQuery(_TAIL.sub("", statement))
    except ParseException:
        start = _COMMENTS.match(statement)
        word = _WORD.search(statement, 0 if start is None else start.end())
        return "" if word is None else word[0].upper()
    return None
