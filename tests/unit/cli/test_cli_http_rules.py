"""Commands that speak to the HTTP door, which has no logins, of a node whose rules are on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.client.command import Penstock, command
from support.node_process import NodeProcess

REASON = "the HTTP door has no logins yet, so --user admin is not used"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    rules = {"PENSTOCK_ACCESS__SUPER_USERS": "User:admin", "PENSTOCK_ACCESS__ALLOW_WITHOUT_RULE": "false"}
    with NodeProcess(tmp_path_factory.mktemp("node"), memory=True, has_http=True, environment=rules) as running:
        yield running


@pytest.fixture
def penstock(node: NodeProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Penstock:
    # Set before, so that what a login leaves in the environment is taken back.
    monkeypatch.setenv("PENSTOCK_USER", "admin")
    monkeypatch.setenv("PENSTOCK_PASSWORD", "secret")

    return command(
        capsys,
        first=(
            "--user",
            "admin",
        ),
        last=("--http", node.http),
    )


@pytest.mark.parametrize(
    "words",
    [
        ("queue", "describe", "t", "g"),
        ("queue", "receive", "t", "g"),
        ("dlq", "show", "t-dlq"),
        ("schedule", "create", "n", "--cron", "* * * * *", "--topic", "t"),
        ("schedule", "pending", "--topic", "t"),
        ("trace", "--topic", "t", "--offset", "0"),
        ("why", "--topic", "t", "--offset", "0"),
    ],
)
def test_super_user_is_told_why_he_is_refused(penstock: Penstock, words: tuple[str, ...]) -> None:
    code, out, err = penstock(*words)
    assert (code, out) == (1, "")
    assert err.startswith("penstock: User:ANONYMOUS may not ")
    assert f"({REASON}; a rule for User:ANONYMOUS would allow it)" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", [("queue", "list"), ("dlq", "list"), ("schedule", "list"), ("schedule", "pending")])
def test_list_says_what_it_leaves_out(penstock: Penstock, words: tuple[str, ...]) -> None:
    assert penstock("queue", "describe", "t", "g")[0] == 1
    code, _, err = penstock(*words)
    assert code == 0
    assert f"note: what User:ANONYMOUS may not see is left out ({REASON})\n" in err


def test_what_is_not_found_may_have_been_left_out(penstock: Penstock) -> None:
    assert penstock("queue", "describe", "t", "g")[0] == 1
    code, _, err = penstock("schedule", "delete", "nightly", "--yes")
    assert (code, "is left out" in err, "there is no schedule 'nightly'" in err) == (1, True, True)
