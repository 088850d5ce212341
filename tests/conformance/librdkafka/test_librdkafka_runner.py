"""The runner's own reading and judging. The suite itself is not here: `make conformance` brings and runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.librdkafka.kafka_scripts import Rule, parse_rule, topic_words
from conformance.librdkafka.outcomes import (
    Expected,
    Need,
    Outcome,
    State,
    Verdict,
    for_protocol,
    judge,
    last_words,
    load_expected,
    merge,
    parse_report,
)
from conformance.librdkafka.suite_catalogue import (
    CatalogueError,
    SuiteTest,
    parse_catalogue,
    plan_errands,
)
from conformance.librdkafka.suite_report import LIST, MARK, as_document, render_list, write_list

WITHOUT_BROKER = ("0102_static_group_rebalance_mock", "0176_share_consumer_commit_sync_local")

TABLE = """
struct test tests[] = {
    /* _TEST(9999_in_a_comment, 0), */
    {.name = "<MAIN>", .flags = TEST_F_LOCAL},
    _TEST(0000_units, TEST_F_LOCAL, _THRES(.ucpu = 100.0, .rss = 900.0)),
    _TEST(0001_plain, 0),
#if WITH_SOCKEM
    _TEST(0002_sockets, TEST_F_SOCKEM, TEST_BRKVER(0, 9, 0, 0)),
#endif
    _TEST(0003_twice, 0),
    _TEST(0003_twice_mock, TEST_F_LOCAL),
    _TEST(0003_twice_elsewhere,
          0,
          TEST_BRKVER(0, 9, 0, 0),
          .scenario = "noautocreate"),
    _TEST(0004_hopeless, TEST_F_LOCAL | TEST_F_KNOWN_ISSUE, .extra = "never worked, on (any) broker"),
    _TEST(8000_by_hand, TEST_F_MANUAL),
    {NULL}};
"""

REPORT = """{ "id": "x", "tests": {"<MAIN>": {"name": "<MAIN>", "state": "PASSED", "duration": 2.5, "report": [ ] },
"0001_plain": {"name": "0001_plain", "state": "PASSED", "known_issue": false, "duration": 1.25, "report": [ ] },
"0002_sockets": {"name": "0002_sockets", "state": "FAILED", "known_issue": false, "duration": 0.5, "report": [ ] },
"0003_twice": {"name": "0003_twice", "state": "RUNNING", "known_issue": false, "duration": 9.5, "report": [ ] },
"0003_twice_mock": {"name": "0003_twice_mock", "state": "SKIPPED", "known_issue": false, "duration": 0, "report": [ ] }
}, "tests_run": 3 }"""

FAILED_OUTPUT = (
    "\x1b[36m[0002_sockets /  0.1s] at work\n\x1b[0m"
    '\x1b[31m### Test "0002_sockets (part:629)" failed at 0002-sockets.c:718:part() at Sun: ###\n'
    'Test assertion failed: "count == 10":\n'
    "\x1b[0m[<MAIN> / 3.2s] ALL-TESTS: duration 3201.898ms\n"
)


def names(tests: tuple[SuiteTest, ...]) -> list[str]:
    return [test.name for test in tests]


def test_catalogue_knows_each_test_with_its_flags_and_scenario() -> None:
    tests = {test.name: test for test in parse_catalogue(TABLE)}
    assert list(tests)[:3] == ["0000_units", "0001_plain", "0002_sockets"]
    assert len(tests) == 8
    assert tests["0000_units"].is_local
    assert not tests["0002_sockets"].is_local
    assert tests["0003_twice_elsewhere"].scenarios == ("noautocreate",)
    assert tests["0004_hopeless"].is_known_issue
    assert tests["8000_by_hand"].is_manual


def test_unknown_table_is_an_error_not_an_empty_run() -> None:
    for text in ("", "struct test tests[] = {\n    {NULL}};", "struct test tests[] = {\n _TEST(0001_x, 0\n {NULL}};"):
        with pytest.raises(CatalogueError):
            parse_catalogue(text)


def test_one_errand_for_each_number_and_scenario() -> None:
    errands = plan_errands(parse_catalogue(TABLE))
    assert [(errand.number, errand.scenario) for errand in errands] == [
        ("0001", "default"),
        ("0002", "default"),
        ("0003", "default"),
        ("0003", "noautocreate"),
    ]
    assert names(errands[2].tests) == ["0003_twice"]


def test_local_tests_run_when_asked_for() -> None:
    catalogue = parse_catalogue(TABLE)
    assert "0000" in {errand.number for errand in plan_errands(catalogue, with_local=True)}
    (units,) = plan_errands(catalogue, only=["0000"])
    assert names(units.tests) == ["0000_units"]
    assert plan_errands(catalogue, only=["8000", "0004"]) == []


def test_report_tells_who_passed() -> None:
    outcomes = parse_report(REPORT, FAILED_OUTPUT, ["0001_plain", "0002_sockets", "0003_twice", "0003_twice_mock"])
    states = [State.PASSED, State.FAILED, State.FAILED, State.SKIPPED]
    assert [outcome.state for outcome in outcomes] == states
    assert outcomes[0].seconds == 1.25
    assert outcomes[0].said == ""
    assert outcomes[1].said == '0002-sockets.c:718: Test assertion failed: "count == 10":'


@pytest.mark.parametrize("report", ["", "{", "{}"])
def test_program_that_died_without_a_report_failed_all_its_tests(report: str) -> None:
    (outcome,) = parse_report(report, "starting\nended by signal SIGSEGV", ["0001_plain"])
    assert outcome.state is State.FAILED
    assert outcome.said == "starting / ended by signal SIGSEGV"


def test_reason_for_skipping_is_told() -> None:
    output = "[0053_stats  /  0.0s] \x1b[33mWARN: SKIPPING TEST: no such library\x1b[0m\n[<MAIN> / 0.2s] done"
    assert last_words(output, "0053_stats") == "no such library"
    assert last_words(output, "0054_other", lines_max=1) == "[<MAIN> / 0.2s] done"


@pytest.mark.parametrize(
    ("state", "is_listed", "verdict"),
    [
        (State.PASSED, False, Verdict.PASSES),
        (State.PASSED, True, Verdict.MENDED),
        (State.FAILED, True, Verdict.LISTED),
        (State.FAILED, False, Verdict.BROKEN),
        (State.SKIPPED, True, Verdict.LISTED),
        (State.SKIPPED, False, Verdict.BROKEN),
    ],
)
def test_list_and_outcome_must_agree(state: State, is_listed: bool, verdict: Verdict) -> None:
    expected = {"0001_plain": Expected(Need.SEVERAL_NODES, "two brokers")} if is_listed else {}
    assert judge(Outcome("0001_plain", state), expected) is verdict
    assert as_document([Outcome("0001_plain", state)], expected)["is_good"] is (
        verdict in {Verdict.PASSES, Verdict.LISTED}
    )


def test_listed_test_without_a_reason_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "expected.toml"
    path.write_text('[0001_plain]\nneed = "several-nodes"\nreason = " "\n')
    with pytest.raises(ValueError, match="0001_plain"):
        load_expected(path)


def test_written_list_keeps_what_a_person_wrote(tmp_path: Path) -> None:
    path = tmp_path / "list.md"
    path.write_text(f"# By hand\n\n{MARK}\nold")
    expected = {"0002_sockets": Expected(Need.KAFKA_INSTALLATION, "starts kafka-acls.sh")}
    write_list(parse_catalogue(TABLE), expected, path)
    text = path.read_text()
    assert text.startswith(f"# By hand\n\n{MARK}\n")
    assert "| 0002_sockets | starts kafka-acls.sh |" in text
    assert "old" not in text
    some = {"0001_plain": Expected(Need.SUITE, "later than ours", "consumer")}
    assert for_protocol(some, "classic") == {}
    assert for_protocol(some, "consumer") == some
    assert "4 pass, 0 are listed" in render_list(parse_catalogue(TABLE), some)
    assert "4 of them against a broker:\n3 pass, 1 are listed" in render_list(parse_catalogue(TABLE), expected)


def test_wish_for_a_topic_is_translated() -> None:
    words = "--bootstrap-server h:1 --create --topic t --replication-factor 1 --partitions 2 --config a=b --config c=d"
    assert topic_words(words.split()) == (
        ["topic", "create", "t", "--bootstrap", "h:1", "--partitions", "2", "--config", "a=b", "--config", "c=d"]
    )
    assert topic_words(["--bootstrap-server", "h:1", "--delete", "--topic", "t"]) == (
        ["topic", "delete", "t", "--bootstrap", "h:1", "--yes"]
    )


def test_wish_for_a_rule_is_understood() -> None:
    added = "--bootstrap-server h:1 --add --deny-principal User:* --operation All --deny-host * --topic t"
    assert parse_rule(added.split()) == Rule("h:1", True, "t", "User:*", "*", "ALL", False)
    removed = "--bootstrap-server h:1 --remove --force --allow-principal User:a --operation Describe --topic t"
    assert parse_rule(removed.split()) == Rule("h:1", False, "t", "User:a", "*", "DESCRIBE", True)


def test_written_list_says_what_the_runner_expects() -> None:
    expected = load_expected(Path(__file__).with_name("expected.toml"))
    written = {line for line in LIST.read_text().splitlines() if line.startswith("| 0")}
    assert written == {f"| {name} | {listed.reason} |" for name, listed in expected.items()}, (
        "run `make conformance-list`"
    )


def test_test_that_runs_by_several_mechanisms_passes_when_it_has_by_all() -> None:
    first = [Outcome("a", State.PASSED, 1.0), Outcome("b", State.PASSED, 1.0), Outcome("c", State.PASSED, 1.0)]
    second = [
        Outcome("a", State.PASSED, 2.0),
        Outcome("b", State.FAILED, 2.0, "why"),
        Outcome("c", State.SKIPPED, 2.0, "no reason"),
    ]
    assert merge([first, second]) == [
        Outcome("a", State.PASSED, 3.0),
        Outcome("b", State.FAILED, 3.0, "why"),
        Outcome("c", State.SKIPPED, 3.0, "no reason"),
    ]


def test_only_tests_about_logins_run_by_mechanisms() -> None:
    tests = [SuiteTest("0001_plain"), SuiteTest("0135_sasl_credentials")]
    plain, about_logins = plan_errands(tests)
    assert plain.mechanisms == ()
    assert "PLAIN" in about_logins.mechanisms


def test_list_holds_only_what_needs_a_kafka_installation_or_several_nodes() -> None:
    """Beside tests that bring no broker of ours, or that fit only one of the two group protocols."""
    listed = load_expected(Path(__file__).with_name("expected.toml"))
    reasons = {found.need for name, found in listed.items() if not found.group_protocol and name not in WITHOUT_BROKER}
    assert reasons == {Need.KAFKA_INSTALLATION, Need.SEVERAL_NODES}
