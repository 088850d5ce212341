"""The same dialogues with Apache Kafka and with a node: the answers agree, but for what accepted.toml lists.

A failure shows every field that differs. It is Penstock's fault until somebody has judged otherwise and written down
why; `python -m conformance.differential.differences_page` in tests/ then writes docs/conformance/differences.md anew.
"""

from __future__ import annotations

import secrets
from collections import Counter
from typing import Final

import pytest

from conformance.differential import dialogues, differences_page  # noqa: F401  importing registers the dialogues
from conformance.differential.comparison import Accepted, Difference, compare, load_accepted
from conformance.differential.conftest import Pair
from conformance.differential.talk import DIALOGUES, LOGIN, Dialogue, Step, Talk

pytestmark = pytest.mark.slow

RUN: Final = secrets.token_hex(3)
SHOWN_MAX: Final = 200
ACCEPTED: Final = load_accepted()

_shown: set[Accepted] = set()
_done: set[str] = set()
COUNTS: Final[Counter[str]] = Counter()


@pytest.mark.parametrize("name", sorted(DIALOGUES))
def test_both_brokers_answer_the_same(name: str, pair: Pair, request: pytest.FixtureRequest) -> None:
    dialogue = DIALOGUES[name]
    if dialogue.at == LOGIN:
        pair = request.getfixturevalue("login_pair")
    missing = dialogue.missing(pair.served)
    assert not missing, f"only one of the brokers serves {', '.join(missing)}"
    unlisted: list[Difference] = []
    for level in range(dialogue.level_count(pair.served)):
        for difference in differences(dialogue, level, pair):
            covering = next((entry for entry in ACCEPTED if entry.covers(difference)), None)
            if covering is None:
                unlisted.append(difference)
            else:
                _shown.add(covering)
                COUNTS["accepted"] += 1
    _done.add(name)
    assert not unlisted, report(unlisted)


def test_every_accepted_difference_still_shows() -> None:
    if _done != set(DIALOGUES):
        pytest.skip("only a run of all dialogues can tell")
    gone = [
        f"{entry.dialogue}: {entry.step}: {entry.path}: {entry.reason}" for entry in ACCEPTED if entry not in _shown
    ]
    print(dict(COUNTS))
    assert not gone, "accepted, but no longer so; take it off the list:\n" + "\n".join(gone)


def test_the_page_of_differences_is_the_list() -> None:
    assert differences_page.PAGE.read_text() == differences_page.render(ACCEPTED), (
        "docs/conformance/differences.md is out of date: run python -m conformance.differential.differences_page"
    )


def differences(dialogue: Dialogue, level: int, pair: Pair) -> list[Difference]:
    versions = dialogue.versions(level, pair.served)
    prefix = f"d{RUN}-{dialogue.name}-{level}-"
    theirs, ours = (
        hold(dialogue, Talk(broker, prefix, versions, pair.served), name)
        for name, broker in (("Kafka", pair.kafka), ("Penstock", pair.penstock))
    )
    COUNTS["runs"] += 1
    COUNTS["steps"] += len(theirs)
    return list(compare(dialogue.name, theirs, ours))


def hold(dialogue: Dialogue, talk: Talk, name: str) -> list[Step]:
    try:
        dialogue.script(talk)
    except Exception as error:
        last = talk.steps[-1].name if talk.steps else "the beginning"
        raise AssertionError(f"{name}, after {last!r}: {error}") from error
    finally:
        talk.close()
    return talk.steps


def report(differences: list[Difference]) -> str:
    """One line for each field, however many versions show it."""
    lines: dict[tuple[str, ...], list[int]] = {}
    for each in differences:
        lines.setdefault((each.step, each.request, each.path, each.kafka, each.penstock), []).append(each.version)
    shown = [
        f"{step} ({request} {versions_text(versions)}): {path}: Kafka {kafka} | Penstock {penstock}"
        for (step, request, path, kafka, penstock), versions in lines.items()
    ]
    return "\n".join(["", *shown[:SHOWN_MAX], f"{len(shown)} differences"])


def versions_text(versions: list[int]) -> str:
    return f"v{min(versions)}" if min(versions) == max(versions) else f"v{min(versions)}-{max(versions)}"
