"""Sessions of share groups: epochs in order, one per member, gone with their connection."""

from __future__ import annotations

from penstock.domain.share.session import ShareSession, ShareSessionProblem, ShareSessions, update

PLACES = [(b"t" * 16, number) for number in range(3)]


def opened(sessions: ShareSessions, member: str = "ann", connection: str = "c1") -> ShareSession:
    session = sessions.open("g", member, connection)
    assert isinstance(session, ShareSession)
    return session


def test_every_step_is_one_higher_than_the_one_before() -> None:
    sessions = ShareSessions(10)
    session = opened(sessions)
    for epoch in (1, 2, 3):
        assert sessions.step("g", "ann", epoch) is session
    assert sessions.step("g", "ann", 3) is ShareSessionProblem.INVALID_SHARE_SESSION_EPOCH
    assert sessions.step("g", "ann", 4) is session


def test_after_the_highest_epoch_comes_1() -> None:
    sessions = ShareSessions(10)
    session = opened(sessions)
    session.epoch = 2**31 - 1
    assert sessions.step("g", "ann", 2**31 - 1) is session
    assert session.epoch == 1


def test_a_member_without_a_session_has_no_step() -> None:
    sessions = ShareSessions(10)
    session = opened(sessions)
    sessions.end(session)
    for epoch in (1, -1):
        assert sessions.step("g", "ann", epoch) is ShareSessionProblem.SHARE_SESSION_NOT_FOUND
    assert session.is_over


def test_a_full_node_opens_no_more() -> None:
    sessions = ShareSessions(1)
    first = opened(sessions)
    assert sessions.open("g", "bob", "c2") is ShareSessionProblem.SHARE_SESSION_LIMIT_REACHED
    sessions.end(first)
    opened(sessions, "bob", "c2")


def test_the_sessions_of_a_connection_end_with_it() -> None:
    sessions = ShareSessions(10)
    ann, bob, cid = opened(sessions), opened(sessions, "bob"), opened(sessions, "cid", "c2")
    assert sessions.end_connection("c1") == [ann, bob]
    assert (ann.is_over, bob.is_over, cid.is_over) == (True, True, False)
    assert len(sessions) == 1
    assert sessions.end_connection("c1") == []


def test_a_session_that_was_opened_anew_elsewhere_outlives_its_old_connection() -> None:
    sessions = ShareSessions(10)
    sessions.end(opened(sessions))
    again = opened(sessions, connection="c2")
    assert sessions.end_connection("c1") == []
    assert sessions.get("g", "ann") is again


def test_partitions_are_added_and_forgotten() -> None:
    session = opened(ShareSessions(10))
    assert update(session, PLACES, ()) == []
    assert update(session, (), [PLACES[1], (b"u" * 16, 0)]) == [PLACES[1]]
    assert list(session.partitions) == [PLACES[0], PLACES[2]]


def test_no_partition_is_always_the_last() -> None:
    session = opened(ShareSessions(10))
    update(session, PLACES, ())
    assert {session.in_turn()[-1] for _ in PLACES} == set(PLACES)
