"""What a query is called, read from what Spark lets each of its tasks know. Pure.

The tasks of a stream have the query's id as a property of its own. Its name stands only in the description of the job,
written for people: the name, the id, the run's id and the batch, in this order, each on a line of its own. (Older ones
have a `<br/>` between the lines.) Before the name there is nothing, so it may hold anything; what follows it is known.
"""

from __future__ import annotations

from typing import Final

# A name becomes part of a group's name, and brokers keep a text of 4,096 bytes for us.
NAME_BYTES_MAX: Final = 1_000
_SEPARATORS: Final = ("\n", "<br/>")


def label_of(query_id: str | None, description: str | None) -> str | None:
    """The query's name; the id of one that has none, or whose description is another's (`setJobDescription`) or too
    long; None outside of a stream."""
    if not query_id:
        return None
    name = _name_in(description or "", query_id)
    return name if name and len(name.encode()) <= NAME_BYTES_MAX else query_id


def _name_in(description: str, query_id: str) -> str:
    for separator in _SEPARATORS:
        name, found, _ = description.rpartition(f"{separator}id = {query_id}{separator}runId = ")
        if found:
            return name
    return ""
