"""`penstock group …` against a real node: lists, lag, resets and removals, and one sentence when it cannot be done."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.client.kafka import groups
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.codec.kafka.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from penstock.codec.kafka.messages.join_group import JoinGroupResponse
from penstock.codec.kafka.messages.sync_group import SyncGroupResponse
from penstock.net.address import parse_addresses
from support.client.command import Penstock, command
from support.group.phrases import assigned, enter, join, report, sync
from support.node_process import NodeProcess


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    # A group is complete as soon as those have joined who are there.
    environment = {"PENSTOCK_GROUPS__INITIAL_REBALANCE_DELAY_MS": "0"}
    with NodeProcess(tmp_path_factory.mktemp("node"), memory=True, environment=environment) as running:
        yield running


@pytest.fixture
def penstock(node: NodeProcess, capsys: pytest.CaptureFixture[str]) -> Penstock:
    return command(capsys, last=("--bootstrap", node.kafka))


@pytest.fixture
def ask(penstock: Penstock) -> Callable[..., Any]:
    def call(*words: str) -> Any:
        code, out, err = penstock(*words, "--json")
        assert code == 0, err
        return json.loads(out)

    return call


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def topic(penstock: Penstock, tmp_path: Path) -> str:
    """Two partitions; ten messages in the first."""
    name = f"topic-{uuid.uuid4().hex[:8]}"
    file = tmp_path / "lines"
    file.write_text("".join(f"{number}\n" for number in range(10)))
    assert penstock("topic", "create", name, "-p", "2")[0] == 0
    assert penstock("produce", name, "--file", str(file), "--partition", "0")[0] == 0
    return name


def commit(node: NodeProcess, group: str, offsets: dict[tuple[str, int], int]) -> None:
    async def work() -> None:
        async with ClusterClient(parse_addresses(node.kafka)) as client:
            await groups.commit_offsets(client, group, offsets)

    asyncio.run(work())


def enter_consumer_group(node: NodeProcess, group: str, topic: str) -> None:
    """A member that joins and is then silent; it is believed alive for a whole session."""
    beat(node, enter("the-member", group=group, topics=(topic,)))


def leave_consumer_group(node: NodeProcess, group: str) -> None:
    beat(node, report("the-member", -1, group=group))


def beat(node: NodeProcess, request: ConsumerGroupHeartbeatRequest) -> None:
    async def work() -> None:
        async with ClusterClient(parse_addresses(node.kafka)) as client:
            reply = await client.call(request, ConsumerGroupHeartbeatResponse)
            assert reply.error_code == 0, reply

    asyncio.run(work())


def enter_classic_group(node: NodeProcess, group: str, topic: str) -> str:
    async def work() -> str:
        async with ClusterClient(parse_addresses(node.kafka)) as client:
            given = await client.call(join(group=group, topics=(topic,)), JoinGroupResponse)
            reply = await client.call(join(given.member_id, group=group, topics=(topic,)), JoinGroupResponse)
            own = {reply.member_id: assigned(topic, 0, 1)}
            synced = await client.call(sync(reply.member_id, reply.generation_id, own, group=group), SyncGroupResponse)
            assert synced.error_code == 0, synced
            return reply.member_id

    return asyncio.run(work())


# Seeing


def test_groups_are_listed_by_name_state_and_type(
    node: NodeProcess, penstock: Penstock, ask: Any, topic: str, group: str
) -> None:
    commit(node, group, {(topic, 0): 3})
    enter_consumer_group(node, f"{group}-live", topic)
    empty = {"group": group, "type": "classic", "state": "Empty", "protocol_type": ""}
    live = {"group": f"{group}-live", "type": "consumer", "state": "Stable", "protocol_type": "consumer"}

    def listed(*words: str) -> list[Any]:
        return [row for row in ask("group", "list", *words)["groups"] if row["group"].startswith(group)]

    assert listed() == [empty, live]
    assert listed("--state", "empty") == [empty]
    assert listed("--type", "consumer") == [live]
    assert listed("--state", "Empty", "--state", "Stable", "--type", "classic") == [empty]
    assert group in penstock("group", "list")[1]


def test_group_is_described_with_its_lag(
    node: NodeProcess, penstock: Penstock, ask: Any, topic: str, group: str
) -> None:
    commit(node, group, {(topic, 0): 3})
    found = ask("group", "describe", group)
    assert (found["group"], found["type"], found["state"]) == (group, "classic", "Empty")
    assert (found["lag"], found["members"]) == (7, [])
    (partition,) = found["partitions"]
    assert partition == {
        "topic": topic,
        "partition": 0,
        "committed": 3,
        "end": 10,
        "lag": 7,
        "member_id": None,
        "client_id": None,
        "host": None,
    }
    out = penstock("group", "describe", group)[1]
    assert topic in out
    assert "7" in out


@pytest.mark.parametrize("kind", ["classic", "consumer"])
def test_lag_is_told_per_partition_and_member(node: NodeProcess, ask: Any, topic: str, group: str, kind: str) -> None:
    commit(node, group, {(topic, 0): 4})
    if kind == "classic":
        member_id = enter_classic_group(node, group, topic)
    else:
        enter_consumer_group(node, group, topic)
        member_id = "the-member"
    found = ask("group", "describe", group)
    assert (found["type"], found["state"]) == (kind, "Stable")
    assert found["assignor"] == ("range" if kind == "classic" else "uniform")
    (member,) = found["members"]
    assert (member["member_id"], member["client_id"], member["host"]) == (member_id, "penstock", "127.0.0.1")
    assert (member["partitions"], member["lag"]) == (2, 6)
    assert [(row["committed"], row["lag"], row["member_id"]) for row in found["partitions"]] == [
        (4, 6, member_id),
        (None, None, member_id),
    ]


# Resetting


def offsets_of(ask: Any, group: str) -> dict[int, int]:
    return {row["partition"]: row["committed"] for row in ask("group", "describe", group)["partitions"]}


@pytest.mark.parametrize(
    ("place", "offset"),
    [("earliest", 0), ("latest", 10), ("6", 6), ("@7", 7), ("99", 10), ("10 minutes ago", 0), ("2099-01-01", 10)],
)
def test_offsets_are_reset_to_any_place(
    node: NodeProcess, ask: Any, topic: str, group: str, place: str, offset: int
) -> None:
    commit(node, group, {(topic, 0): 3})
    done = ask("group", "reset", group, "--to", place)
    assert done == {
        "group": group,
        "dry_run": False,
        "partitions": [{"topic": topic, "partition": 0, "before": 3, "after": offset}],
    }
    assert offsets_of(ask, group) == {0: offset}


def test_dry_run_shows_and_changes_nothing(
    node: NodeProcess, penstock: Penstock, ask: Any, topic: str, group: str
) -> None:
    commit(node, group, {(topic, 0): 3})
    code, out, err = penstock("group", "reset", group, "--to", "latest", "--dry-run")
    assert (code, err) == (0, "1 partition would be reset, nothing was changed\n")
    assert topic in out
    assert ask("group", "reset", group, "--to", "latest", "--dry-run")["dry_run"] is True
    assert offsets_of(ask, group) == {0: 3}


def test_topics_and_partitions_are_chosen(node: NodeProcess, penstock: Penstock, ask: Any, group: str) -> None:
    names = [f"{group}-{letter}" for letter in "abc"]
    for name in names:
        penstock("topic", "create", name, "-p", "3")
    done = ask("group", "reset", group, "--to", "earliest", "--topic", names[0], "-t", f"{names[1]}:0,2")
    assert [(row["topic"], row["partition"]) for row in done["partitions"]] == [
        (names[0], 0),
        (names[0], 1),
        (names[0], 2),
        (names[1], 0),
        (names[1], 2),
    ]
    assert ask("group", "describe", group)["state"] == "Empty"


@pytest.mark.parametrize("kind", ["classic", "consumer"])
def test_reset_is_refused_while_members_are_active(
    node: NodeProcess, penstock: Penstock, ask: Any, topic: str, group: str, kind: str
) -> None:
    commit(node, group, {(topic, 0): 3})
    (enter_classic_group if kind == "classic" else enter_consumer_group)(node, group, topic)
    for words in (("--to", "latest"), ("--to", "latest", "--dry-run"), ("--to", "latest", "--topic", topic)):
        code, out, err = penstock("group", "reset", group, *words)
        assert (code, out) == (1, "")
        assert err == (
            f"penstock: group {group!r} has 1 member that is active: its offsets can be moved only when none is\n"
        )
    assert offsets_of(ask, group)[0] == 3


def test_reset_is_possible_once_the_members_have_left(node: NodeProcess, ask: Any, topic: str, group: str) -> None:
    enter_consumer_group(node, group, topic)
    leave_consumer_group(node, group)
    ask("group", "reset", group, "--to", "5", "--topic", f"{topic}:0")
    assert offsets_of(ask, group) == {0: 5}


# Deleting


def test_group_is_deleted_with_its_offsets(
    node: NodeProcess, penstock: Penstock, ask: Any, topic: str, group: str
) -> None:
    commit(node, group, {(topic, 0): 3})
    assert penstock("group", "delete", group, "--yes") == (0, "", f"group {group!r} deleted\n")
    assert penstock("group", "delete", group, "--yes") == (1, "", f"penstock: group {group!r} does not exist\n")
    commit(node, group, {(topic, 0): 3})
    assert ask("group", "delete", group, "--yes") == {"deleted": [group], "failed": {}}


def test_one_refusal_does_not_hide_the_other_outcomes(
    node: NodeProcess, penstock: Penstock, topic: str, group: str
) -> None:
    commit(node, group, {(topic, 0): 3})
    enter_consumer_group(node, f"{group}-live", topic)
    code, out, err = penstock("group", "delete", f"{group}-live", group, "--yes", "--json")
    assert code == 1
    assert json.loads(out)["deleted"] == [group]
    assert list(json.loads(out)["failed"]) == [f"{group}-live"]
    assert "has members that are active" in err


# One sentence


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("describe", "missing"), 1, "group 'missing' does not exist"),
        (("reset", "missing", "--to", "latest"), 1, "group 'missing' does not exist"),
        (("reset", "missing", "--to", "latest", "--topic", "missing"), 1, "topic 'missing' does not exist"),
        (("reset", "missing", "--to", "whenever"), 2, "--to: 'whenever' is not a place to start from"),
        (("reset", "missing", "--to", "0", "--topic", "t:x"), 2, "--topic 't:x' is not of the form"),
        (("reset", "missing"), 2, "missing option '--to'"),
        (("delete", "missing", "--yes"), 1, "group 'missing' does not exist"),
    ],
)
def test_a_refusal_is_one_sentence(penstock: Penstock, words: tuple[str, ...], code: int, sentence: str) -> None:
    found, out, err = penstock("group", *words)
    assert (found, out) == (code, "")
    assert sentence in err
    assert err.count("\n") == 1


def test_partition_that_is_not_there_is_named(penstock: Penstock, topic: str, group: str) -> None:
    code, _, err = penstock("group", "reset", group, "--to", "0", "--topic", f"{topic}:7")
    assert (code, err) == (1, f"penstock: topic {topic!r} has no partition 7 (it has 0 to 1)\n")
