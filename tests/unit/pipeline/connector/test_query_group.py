"""When the driver asks a task for the query's name, and when it looks for the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.net.errors import BrokerUnreachableError
from penstock.pipeline.connector import query_group
from penstock.pipeline.connector.query_group import PAUSE_SECONDS_FIRST, PAUSE_SECONDS_MAX, QueryGroup
from penstock.pipeline.source.line import SourceLine


class ScriptedLine(SourceLine):
    """Answers, or failures, one for each question."""

    def __init__(self, *answers: Any) -> None:
        super().__init__("127.0.0.1:1")
        self.answers = list(answers)

    def ask(self, question: Callable[..., Any], *, patience_ms: int = 0) -> Any:
        assert question is not None
        assert patience_ms <= query_group.PATIENCE_MS
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


def test_nobody_is_asked_for_what_the_user_said() -> None:
    group = QueryGroup("mine", "team")
    assert group.mailbox_for_task() is None
    assert group.find(ScriptedLine()) == "mine"


def test_nothing_is_looked_for_before_a_task_was_asked_nor_after_it_has_answered() -> None:
    group = QueryGroup(None, "team")
    assert group.find(ScriptedLine()) is None
    mailbox = group.mailbox_for_task()
    assert mailbox is not None
    assert mailbox.startswith("team-name-wanted-")
    assert group.find(ScriptedLine(["totals"], None)) == "team-totals"
    assert group.mailbox_for_task() is None
    assert group.find(ScriptedLine()) == "team-totals"


def test_mailboxes_of_two_sources_differ() -> None:
    assert QueryGroup(None, "team").mailbox_for_task() != QueryGroup(None, "team").mailbox_for_task()


def test_a_mailbox_that_cannot_be_deleted_does_not_lose_the_name() -> None:
    group = QueryGroup(None, "team")
    group.mailbox_for_task()
    assert group.find(ScriptedLine(["totals"], TimeoutError())) == "team-totals"


def test_what_could_not_be_fetched_is_fetched_later_without_another_task() -> None:
    clock = Clock()
    group = QueryGroup(None, "team", clock.monotonic)
    group.mailbox_for_task()
    for failure in (BrokerUnreachableError("away"), TimeoutError()):
        assert group.find(ScriptedLine(failure)) is None
        # Not at once, however often it is wanted.
        assert group.find(ScriptedLine()) is None
        clock.now += PAUSE_SECONDS_MAX
    assert group.find(ScriptedLine(["totals"], None)) == "team-totals"


def test_tasks_that_do_not_answer_are_asked_ever_more_rarely() -> None:
    clock = Clock()
    group = QueryGroup(None, "team", clock.monotonic)
    pauses = []
    for _ in range(9):
        assert group.mailbox_for_task() is not None
        assert group.find(ScriptedLine([])) is None
        asked = clock.now
        while group.mailbox_for_task() is None:
            clock.now += PAUSE_SECONDS_FIRST
        pauses.append(clock.now - asked)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
