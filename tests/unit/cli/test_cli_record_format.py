from __future__ import annotations

import json

import pytest

from penstock.cli.failure import CommandError
from penstock.cli.record_format import RowShape, iso_time, row_formatter
from penstock.codec.batch.records import StoredRecord

RECORD = StoredRecord(7, 1_763_200_000_123, b"key", b'{"a": 1}', (("h", b"1"), ("h", None)))
ODD = StoredRecord(8, 0, None, b"\xff\n\x00")


def line(shape: RowShape, record: StoredRecord = RECORD) -> bytes:
    return row_formatter("t", shape)(3, record)


def test_a_plain_value_goes_out_byte_for_byte() -> None:
    assert line(RowShape()) == b'{"a": 1}\n'
    assert line(RowShape(), ODD) == b"\xff\n\x00\n"


def test_null_is_shown_as_null() -> None:
    assert line(RowShape(has_key=True), StoredRecord(0, 0, None, None)) == b"null\tnull\n"


def test_headers_and_key_stand_before_the_value() -> None:
    assert line(RowShape(has_key=True, has_headers=True)) == b'h=1,h=null\tkey\t{"a": 1}\n'


@pytest.mark.parametrize(
    ("form", "expected"), [("hex", b"ff0a00\n"), ("base64", b"/woA\n"), ("json", b'"\\\\xff\\n\\u0000"\n')]
)
def test_bytes_have_forms_for_people(form: str, expected: bytes) -> None:
    assert line(RowShape(value_format=form), ODD) == expected


def test_json_lines_have_stable_keys() -> None:
    assert json.loads(line(RowShape(is_json=True))) == {
        "topic": "t",
        "partition": 3,
        "offset": 7,
        "timestamp": 1_763_200_000_123,
        "key": "key",
        "value": '{"a": 1}',
        "headers": [["h", "1"], ["h", None]],
    }


def test_json_values_are_embedded_as_they_stand() -> None:
    big = StoredRecord(0, 0, None, b'{"n":\n 123456789012345678901234567890}')
    text = line(RowShape(is_json=True, value_format="json"), big)
    assert b'"value":{"n":  123456789012345678901234567890}' in text
    assert text.count(b"\n") == 1


def test_a_value_that_is_no_json_stays_text() -> None:
    text = line(RowShape(is_json=True, value_format="json"), StoredRecord(0, 0, None, b"plain"))
    assert json.loads(text)["value"] == "plain"


def test_a_template_places_every_field() -> None:
    shape = RowShape(template=r"%n/%p@%o %t %T %k=%v [%h] 100%%\t.")
    expected = b'"a": 1'
    text = line(shape)
    assert text.startswith(b"t/3@7 1763200000123 2025-11-15T09:46:40.123Z key={")
    assert expected in text
    assert text.endswith(b"[h=1,h=null] 100%\t.\n")


def test_an_unknown_field_in_a_template_is_one_sentence() -> None:
    with pytest.raises(CommandError, match="--format: %q is unknown"):
        row_formatter("t", RowShape(template="%q"))


def test_times_that_no_calendar_holds_stay_numbers() -> None:
    assert iso_time(2**62) == str(2**62)
