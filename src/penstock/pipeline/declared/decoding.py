"""Values of a topic decoded in Spark's Python workers, batch by batch: what Spark has no decoder of its own for.

A decoder is a value that can be pickled: it says which columns it makes, and opens what does the work in the worker. A
value that it cannot read becomes a row with an error instead of a row, and hinders none of its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

# Columns beside those that pass through.
ROW: Final = "__row"
ERROR: Final = "__error"
ERROR_CHARACTERS_MAX: Final = 500

# A framed value begins with a zero byte and the number of its schema.
_FRAME_BYTES: Final = 5


class UnreadableError(ValueError):
    """The value is none; one sentence on why."""


class SchemaError(ValueError):
    """The file that describes the values cannot be used; one sentence on why."""


class Decoder(Protocol):
    def columns(self) -> str:
        """As Spark writes them: `id string, amount double`. Raises `SchemaError`."""
        ...

    def open(self) -> Callable[[bytes], dict[str, Any]]:
        """In the worker; what it returns raises `UnreadableError`."""
        ...


def without_frame(value: bytes) -> bytes:
    if len(value) < _FRAME_BYTES or value[0] != 0:
        raise UnreadableError("the value does not begin with a zero byte and the number of a schema")
    return value[_FRAME_BYTES:]


def decode_batches(
    decoder: Decoder, row_type: pa.DataType, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Each batch with two columns more: the row, and why there is none."""
    import pyarrow as pa

    decode = decoder.open()
    for batch in batches:
        rows, errors = _decode_all(decode, batch.column("value").to_pylist())
        made = _as_array(rows, errors, row_type)
        names = [*batch.schema.names, ROW, ERROR]
        yield pa.RecordBatch.from_arrays([*batch.columns, made, pa.array(errors, pa.string())], names=names)


def _decode_all(
    decode: Callable[[bytes], dict[str, Any]], values: list[bytes | None]
) -> tuple[list[dict[str, Any] | None], list[str | None]]:
    rows: list[dict[str, Any] | None] = []
    errors: list[str | None] = []
    for value in values:
        if value is None:
            rows.append(None)
            errors.append(None)
            continue
        try:
            rows.append(decode(value))
            errors.append(None)
        except UnreadableError as error:
            rows.append(None)
            errors.append(str(error)[:ERROR_CHARACTERS_MAX])
    return rows, errors


def _as_array(rows: list[dict[str, Any] | None], errors: list[str | None], row_type: pa.DataType) -> pa.Array:
    """What fits its schema and not its column (a date in the year 12,000) is a bad row as well."""
    import pyarrow as pa

    try:
        return pa.array(rows, row_type)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        for number, row in enumerate(rows):
            try:
                pa.array([row], row_type)
            except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
                rows[number], errors[number] = None, f"does not fit its column: {error}"[:ERROR_CHARACTERS_MAX]
        return pa.array(rows, row_type)
