"""Which zones of commits are read, and what they tell."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.domain.group.records import OffsetStored
from penstock.domain.trace.commits import CommitSearch, commit_events
from penstock.domain.trace.events import Kind, Place

PLACE = Place("orders", 0, 100)
TOPIC_ID = b"t" * 16


def stored(offset: int, at_ms: int = 0, topic_id: bytes = TOPIC_ID) -> OffsetStored:
    return OffsetStored("orders", 0, offset, 0, "", at_ms, topic_id=topic_id)


def test_a_group_passes_with_the_first_commit_behind_the_message() -> None:
    commits = [("a", stored(50, 1)), ("a", stored(100, 2)), ("a", stored(101, 3)), ("a", stored(300, 4))]
    (event,) = commit_events(PLACE, TOPIC_ID, commits)
    assert (event.kind, event.at_ms, event.position_before, event.position) == (Kind.PASSED, 3, 100, 101)


def test_a_group_that_is_set_back_passes_again() -> None:
    commits = [("a", stored(200)), ("a", stored(10)), ("a", stored(150))]
    kinds = [event.kind for event in commit_events(PLACE, TOPIC_ID, commits)]
    assert kinds == [Kind.PASSED, Kind.SET_BACK, Kind.PASSED]


def test_a_topic_of_the_same_name_that_is_gone_says_nothing() -> None:
    assert commit_events(PLACE, TOPIC_ID, [("a", stored(200, topic_id=b"o" * 16))]) == []
    assert len(commit_events(PLACE, TOPIC_ID, [("a", stored(200, topic_id=bytes(16)))])) == 1


def test_a_zone_that_was_looked_through_in_two_pieces_is_one() -> None:
    """The pieces are not in the order of time: which came last is not known."""
    search = CommitSearch(0, PLACE.offset)
    # Passed and then set back, in zone 0; passed again in zone 1.
    assert search.news_in([(7, 10, 20, 0), (7, 150, 200, 0), (7, 150, 160, 1)]) == [0, 1]


# Positions of three groups, in zones of some commits each.
zones = st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(95, 105)), max_size=4), max_size=12)


@given(zones, st.integers(1, 5))
def test_reading_only_the_news_tells_the_same_as_reading_everything(
    content: list[list[tuple[int, int]]], segment_size: int
) -> None:
    everything = [(str(group), stored(offset)) for zone in content for group, offset in zone]
    search = CommitSearch(0, PLACE.offset)
    read = []
    for begin in range(0, len(content), segment_size):
        segment = content[begin : begin + segment_size]
        entries = []
        for zone, commits in enumerate(segment):
            for group in {group for group, _ in commits}:
                offsets = [offset for each, offset in commits if each == group]
                entries.append((group, min(offsets), max(offsets), zone))
        for zone in sorted(set(search.news_in(entries))):
            read += [(str(group), stored(offset)) for group, offset in segment[zone]]

    def told(commits: list[tuple[str, OffsetStored]]) -> list[tuple[str, Kind, int | None]]:
        return [(event.group, event.kind, event.position) for event in commit_events(PLACE, TOPIC_ID, commits)]

    assert told(read) == told(everything)
