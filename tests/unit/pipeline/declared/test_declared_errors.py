"""Spark's long errors become one sentence."""

from __future__ import annotations

from penstock.pipeline.declared.errors import read_complaint, read_failure

UNRESOLVED = (
    "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name `amuont` cannot be "
    "resolved. Did you mean one of the following? [`amount`, `b`]. SQLSTATE: 42703; line 2 pos 1;\n"
    "'Project ['amuont]\n+- SubqueryAlias orders\n"
)
SYNTAX = (
    "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'orders'. SQLSTATE: 42601 (line 1, pos 14)\n\n== SQL ==\n"
    "SELECT b FORM orders x y\n--------------^^^\n"
)
NO_VIEW = (
    "[TABLE_OR_VIEW_NOT_FOUND] The table or view `ordrs` cannot be found. Verify the spelling and correctness of the "
    "schema and catalog.\nSearch path: [`system`.`builtin`].\nTo tolerate the error on drop use DROP VIEW IF EXISTS. "
    "SQLSTATE: 42P01; line 1 pos 14;\n'Project ['b]\n"
)
RAISED = (
    "[STREAM_FAILED] Query [id = e497a392, runId = 42506408] terminated with exception: [USER_RAISED_EXCEPTION] bad "
    'row: {"stage":"parse","source":"orders","topic":"t","partition":1,"offset":42,"error":"","value":"{oh"} '
    "SQLSTATE: P0001 SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: [id = e497a392]\n"
)
PYTHON = (
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] "
    "Failed when Python streaming data source perform latestOffset: Traceback (most recent call last):\n"
    '  File "a.py", line 1, in b\nConnectionRefusedError: [Errno 111] refused\n\n'
    "The above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n"
    "penstock.net.errors.BrokerUnreachableError: 127.0.0.1:1 cannot be reached: connection refused\n"
    "\tat org.apache.spark.Foo SQLSTATE: 38000\n=== Streaming Query ===\nOtherError: of the plan\n"
)
OTHER_CHECKPOINT = (
    "assertion failed: There are [2] sources in the checkpoint offsets and now there are [1] sources requested by the "
    "query. Cannot continue.\n=== Streaming Query ===\n"
)


def test_a_column_that_is_not_there_is_told_with_its_line() -> None:
    complaint = read_complaint(ValueError(UNRESOLVED))
    assert complaint.line == 2
    assert complaint.text == (
        "A column, variable, or function parameter with name `amuont` cannot be resolved. Did you mean one of the "
        "following? [`amount`, `b`]"
    )


def test_a_mistake_of_syntax_is_told_with_its_line() -> None:
    complaint = read_complaint(ValueError(SYNTAX))
    assert (complaint.text, complaint.line) == ("Syntax error at or near 'orders'", 1)


def test_a_view_that_is_not_there_is_told_with_the_one_that_is_meant() -> None:
    assert read_complaint(ValueError(NO_VIEW), ("orders", "people")).text == (
        "there is no source or step 'ordrs'; did you mean 'orders'?"
    )
    assert (
        read_complaint(ValueError(NO_VIEW), ("people",)).text == "there is no source or step 'ordrs'; there are people"
    )


def test_a_bad_row_is_told_with_its_place_and_why() -> None:
    place = "bad row in source 'orders', at offset 42 of partition 1 of topic 't'"
    assert read_failure(RAISED) == f"{place}: parse: {{oh"
    assert read_failure(RAISED, lambda row: f"no JSON at {row['offset']}") == f"{place}: no JSON at 42: {{oh"
    # What is wrong with a long value may be behind what came here of it.
    long = RAISED.replace("{oh", "x" * 200)
    assert read_failure(long, lambda row: "no JSON").startswith(f"{place}: parse: xxx")


def test_an_error_in_python_is_told_by_its_last_line() -> None:
    assert read_failure(PYTHON) == "127.0.0.1:1 cannot be reached: connection refused"
    assert read_failure("Traceback:\n  File x\nValueError: no such thing\n") == "ValueError: no such thing"


def test_a_checkpoint_of_another_query_is_told_with_the_way_out() -> None:
    sentence = read_failure(OTHER_CHECKPOINT)
    assert sentence.startswith("the pipeline was changed so that its checkpoint no longer fits")
    assert "penstock pipeline reset" in sentence


def test_a_failure_without_a_word_still_is_a_sentence() -> None:
    assert read_failure("") == "no reason was told"
    assert len(read_failure("x" * 10_000)) == 400
