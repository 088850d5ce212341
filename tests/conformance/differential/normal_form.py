"""An answer as a tree that two brokers can be compared by: what must differ between them gets a symbolic name.

Ids that a broker draws (topics, members, producers, fetch sessions) are numbered in the order in which they come, or
named after the topic they belong to; addresses, directories and the present time are called what they are. Lists
whose elements have a name of their own become tables by that name: no client relies on their order. Texts for people
are compared by being there or not. Everything else is compared as it is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from penstock.codec.batch.header import BatchHeader, BatchProblem, walk_headers
from penstock.codec.batch.records import StoredRecord, read_records
from penstock.codec.kafka import NO_UUID, ErrorCode, Message

# What tells one element of a list from the next, the first that says something.
_IDENTITIES: Final = (
    "name", "topic", "topic_name", "resource_name", "group_id", "transactional_id", "key", "api_key", "partition_index",
    "partition", "index", "node_id", "broker_id", "member_id", "topic_id", "producer_id",
)  # fmt: skip
_FOR_PEOPLE: Final = frozenset({"error_message", "message", "documentation", "batch_index_error_message"})
_TIMES: Final = ("timestamp", "time_ms", "timestamp_ms")
_NOW_IS_WITHIN_MS: Final = 3_600_000
_DRAWN: Final = {"producer_id": "producer", "session_id": "session", "member_id": "member", "leader": "member"}
# Of KIP-848 groups: a client compares them with each other and with 0 and -1, so where they start means nothing.
_EPOCHS: Final = frozenset({"member_epoch", "group_epoch", "assignment_epoch"})
# Lists whose elements have no name and no order.
_WITHOUT_ORDER: Final = frozenset({"acls", "matching_acls", "credential_infos"})
_SIZES: Final = frozenset({"total_bytes", "usable_bytes", "finalized_features_epoch"})

Tree = Any
ABSENT: Final = "absent"
TEXT_CHARACTERS_MAX: Final = 200


class Symbols:
    """The symbolic names of one run on one broker."""

    def __init__(self, *, prefix: str, port: int) -> None:
        self.prefix = prefix
        self.port = port
        self._drawn: dict[tuple[str, Any], str] = {}
        self._topics: dict[bytes, str] = {}

    def learn_topic(self, topic_id: bytes, name: str) -> None:
        self._topics[topic_id] = f"id of {self.text(name)}"

    def topic_id(self, topic_id: bytes) -> str:
        if topic_id == NO_UUID:
            return "no id"
        return self._topics.get(topic_id) or self.drawn("topic id", topic_id)

    def drawn(self, kind: str, value: Any) -> str:
        taken = sum(1 for known, _ in self._drawn if known == kind)
        return self._drawn.setdefault((kind, value), f"{kind} {taken + 1}")

    def text(self, text: str) -> str:
        """Names of this run lose what makes them unlike those of another run, and long ones most of their length."""
        own = text.replace(self.prefix, "")
        return own if len(own) <= TEXT_CHARACTERS_MAX else f"{own[:8]}... of {len(own)} characters"


def normal_form(value: Any, symbols: Symbols, field: str = "") -> Tree:
    if isinstance(value, Message):
        return {name: normal_form(getattr(value, name), symbols, name) for name in value.__struct_fields__}
    if field == "records":
        return None if value is None else [_batch(*each, symbols) for each in _batches(_joined(value))]
    if isinstance(value, bytes | memoryview | bytearray):
        raw = bytes(value)
        return symbols.topic_id(raw) if field == "topic_id" or "topic_ids" in field else _bytes_text(raw, symbols)
    if isinstance(value, str):
        return _text(value, symbols, field)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return _number(value, symbols, field)
    if isinstance(value, Sequence):
        return _list(value, symbols, field)
    return value


def _list(values: Sequence[Any], symbols: Symbols, field: str) -> Tree:
    # In the order of their names, or ids would be numbered in an order that means nothing.
    is_of_messages = bool(values) and all(isinstance(value, Message) for value in values)
    ordered = sorted(values, key=_raw_name) if is_of_messages else values
    forms = [normal_form(value, symbols, field) for value in ordered]
    if not is_of_messages:
        # Partition numbers come in any order; replicas do not, the first is preferred.
        return sorted(forms) if field == "partitions" else forms
    if field in _WITHOUT_ORDER:
        return sorted(forms, key=str)
    names = [_identity(form) for form in forms]
    if None in names:
        return forms
    table: dict[str, Tree] = {}
    for name, form in sorted(zip(names, forms, strict=True), key=lambda pair: str(pair[0])):
        place, number = str(name), 1
        while place in table:
            number += 1
            place = f"{name} ({number})"
        table[place] = form
    return table


def _raw_name(value: Message) -> str:
    return str(getattr(value, "name", "") or getattr(value, "topic", "") or "")


def _identity(form: Mapping[str, Tree]) -> Tree:
    for name in _IDENTITIES:
        found = form.get(name)
        if found not in (None, "", "no id"):
            # The same place in the answer, whether its version names topics by name or by id.
            return found.removeprefix("id of ") if isinstance(found, str) else found
    return None


def _text(text: str, symbols: Symbols, field: str) -> str:
    if field in _FOR_PEOPLE:
        return "some text" if text else ""
    if field == "cluster_id" and text:
        return "its cluster"
    if field == "log_dir" and text:
        return "its directory"
    if field in _DRAWN and text and not text.startswith(symbols.prefix):
        return symbols.drawn(_DRAWN[field], text)
    return symbols.text(text)


def _number(number: int, symbols: Symbols, field: str) -> int | str:
    if field.endswith("error_code"):
        return ErrorCode(number).name if number in ErrorCode._value2member_map_ else number
    if field == "port" and number == symbols.port:
        return "its port"
    if field == "api_key":
        return f"API {number}"
    if field in _DRAWN and number >= (field == "session_id"):
        return symbols.drawn(_DRAWN[field], number)
    if field in _EPOCHS and number > 0:
        return symbols.drawn("epoch", number)
    if field in _SIZES and number >= 0:
        return "some"
    if field.endswith(_TIMES) and abs(number - time.time() * 1000) < _NOW_IS_WITHIN_MS:
        return "now"
    return number


def _bytes_text(raw: bytes, symbols: Symbols) -> str:
    return symbols.text(raw.decode("latin-1")).encode("latin-1").hex() if raw else ""


def _joined(records: Any) -> bytes:
    if isinstance(records, bytes | bytearray | memoryview):
        return bytes(records)
    return b"".join(bytes(part) for part in records)


def _batches(data: bytes) -> Iterator[tuple[BatchHeader, list[StoredRecord] | BatchProblem]]:
    for position, header in walk_headers(data):
        yield header, read_records(data, position)


def _batch(header: BatchHeader, records: list[StoredRecord] | BatchProblem, symbols: Symbols) -> Tree:
    fields = {name: getattr(header, name) for name in header.__struct_fields__ if name not in {"crc", "checksum"}}
    form: dict[str, Tree] = {name: normal_form(value, symbols, name) for name, value in fields.items()}
    if isinstance(records, BatchProblem):
        form["records"] = "unreadable"
    else:
        form["records"] = [_record(record, symbols) for record in records]
    return form


def _record(record: StoredRecord, symbols: Symbols) -> Tree:
    return {name: normal_form(value, symbols, name) for name, value in msgspec.structs.asdict(record).items()}


def differing(one: Tree, other: Tree, path: str = "") -> Iterator[tuple[str, Tree, Tree]]:
    """The smallest parts that differ, each with its path: `topics/orders/partitions/0/error_code`."""
    if isinstance(one, list) and isinstance(other, list):
        one, other = dict(enumerate(one)), dict(enumerate(other))
    if isinstance(one, dict) and isinstance(other, dict):
        for name in dict.fromkeys((*one, *other)):
            yield from differing(
                one.get(name, ABSENT), other.get(name, ABSENT), f"{path}/{name}" if path else str(name)
            )
    elif one != other or type(one) is not type(other):
        yield path, one, other
