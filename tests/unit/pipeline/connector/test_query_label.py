from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.pipeline.connector.query_label import NAME_BYTES_MAX, label_of

ID = "0a8d5dd3-be39-412e-94a5-f3092014defe"
RUN = "b17a6060-73cd-4680-bf24-9593e738f59a"

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)


def described(name: str, separator: str = "\n", batch: str = "0") -> str:
    return f"{name}{separator}id = {ID}{separator}runId = {RUN}{separator}batch = {batch}"


@given(names, st.sampled_from(["0", "17", "init"]))
@example("a b/c", "0")
@example("Größe <br/>id = 7<br/>", "0")
@example(f"\nid = {RUN}\nrunId = {RUN}\nbatch = 0", "0")
def test_any_name_is_read_as_it_was_given(name: str, batch: str) -> None:
    assert label_of(ID, described(name, batch=batch)) == name


@given(names.filter(lambda name: "<br/>" not in name))
def test_a_name_is_read_from_the_lines_of_an_older_spark(name: str) -> None:
    assert label_of(ID, described(name, "<br/>")) == name


@pytest.mark.parametrize(
    "description",
    [
        None,
        "",
        "what my jobs do",
        described(""),
        described("", "<br/>"),
        described("").lstrip(),
        described("other").replace(ID, RUN),
    ],
)
def test_a_query_whose_name_is_not_told_goes_by_its_id(description: str | None) -> None:
    assert label_of(ID, description) == ID


def test_a_name_that_is_too_long_for_a_group_is_not_cut() -> None:
    assert label_of(ID, described("ä" * (NAME_BYTES_MAX // 2))) == "ä" * (NAME_BYTES_MAX // 2)
    assert label_of(ID, described("ä" * (NAME_BYTES_MAX // 2 + 1))) == ID


@pytest.mark.parametrize("query_id", [None, ""])
def test_what_is_no_stream_has_no_label(query_id: str | None) -> None:
    assert label_of(query_id, "a job\nid = \nrunId = 1") is None
