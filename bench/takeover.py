"""`make bench-takeover`: a leader is killed that has a million delays, a thousand queues and a million positions.

    three nodes    node 1 leads everything; its followers rehearse while it works. kill -9: how long until the next
                   leader answers for each, from the kill and from when it learned that it leads
    one node       the same work, alone, kill -9 and a start: how long until it answers for each from its own checkpoint

Nodes are whole and real; they give themselves the work (`takeover_node`), and are asked by wire. An answer counts if it
is the right one.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import socket
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec

from bench import machine, report, result_files
from bench.takeover_node import GROUP_PARTITIONS, PORT_FILE, POSITIONS_PER_GROUP, TOPIC, group_name, queue_name
from bench.targets import Target, penstock
from penstock.client.kafka import groups
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.net.address import parse_addresses
from penstock.net.errors import ClientError
from penstock.storage.log.journal_snapshot import SNAPSHOT_FILE

ROOT: Final = Path(__file__).parents[1]
NAME: Final = "takeover"
NODES: Final = 3
SECONDS_GOAL: Final = 3.0
TIMES_GOAL: Final = 2.0
FILL_SECONDS_MAX: Final = 300.0
ANSWER_SECONDS_MAX: Final = 60.0
# Nothing was saved for so long: everything that was due is.
SETTLED_SECONDS: Final = 12.0
SETTLING_SECONDS_MAX: Final = 90.0
SNAPSHOT_SECONDS_MAX: Final = 45.0
ASK_AGAIN_SECONDS: Final = 0.02
SUBJECTS: Final = ("groups", "queues", "schedule")


class Plan(msgspec.Struct, frozen=True):
    delays: int
    queues: int
    records: int
    offsets: int
    # So much more of each comes after the last saved start.
    tail: int


# Nodes


def node_of(directory: Path, number: int, *, has_others: bool) -> Target:
    place = directory / str(number)
    place.mkdir(parents=True, exist_ok=True)
    environment = {"PENSTOCK_NODE__ID": str(number)}
    if has_others:
        environment |= {
            "PENSTOCK_NODE__METADATA": f"sqlite:{directory / 'metadata.sqlite'}",
            "PENSTOCK_CLUSTER__LISTEN": "127.0.0.1:0",
        }
    return penstock(place, environment=environment, has_http=True, module="bench.takeover_node")


def tell(directory: Path, number: int, order: dict[str, Any]) -> float:
    """How long it took."""
    port = int((directory / str(number) / "data" / PORT_FILE).read_text())
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=FILL_SECONDS_MAX) as line:
        line.sendall(msgspec.json.encode(order) + b"\n")
        answer = line.makefile().readline()
    assert answer == "done\n", f"node {number}: {answer}"
    return time.monotonic() - began


def page(node: Target) -> str:
    with urllib.request.urlopen(f"http://{node.metrics}/metrics") as reply:
        text: str = reply.read().decode()
    return text


def by_subject(node: Target, name: str) -> dict[str, float]:
    found = re.findall(rf'^{name}{{subject="(\w+)"}} (\S+)$', page(node), re.MULTILINE)
    return {subject: float(value) for subject, value in found}


def wait_until_settled(what: Callable[[], object]) -> float:
    """Until it has stayed the same for long enough; how long that took."""
    began = changed = time.monotonic()
    seen = what()
    while time.monotonic() < changed + SETTLED_SECONDS and time.monotonic() < began + SETTLING_SECONDS_MAX:
        time.sleep(0.2)
        now = what()
        if now != seen:
            seen, changed = now, time.monotonic()
    return time.monotonic() - began


# Asking


def asked(url: str) -> dict[str, Any] | None:
    """None: no answer, or not now."""
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS_MAX) as reply:
            found: dict[str, Any] = msgspec.json.decode(reply.read())
    except (urllib.error.URLError, OSError):
        return None
    return found


def queues_answer(nodes: list[Target]) -> bool:
    name = queue_name(1)
    answers = (asked(f"http://{node.http}/v1/queues/{name.topic}/{name.group}/stats") for node in nodes)
    found = next((answer for answer in answers if answer is not None), None)
    assert found is None or found["leased_count"] == 1, found
    return found is not None


def schedule_answers(nodes: list[Target]) -> bool:
    answers = (asked(f"http://{node.http}/v1/schedules?topic={TOPIC}&count=1") for node in nodes)
    return any(answer is not None and answer["messages"] for answer in answers)


async def offsets_of(nodes: list[Target], number: int) -> dict[tuple[str, int], int] | None:
    for node in nodes:
        try:
            async with ClusterClient(parse_addresses(node.bootstrap)) as client:
                return await groups.committed_offsets(client, group_name(number))
        except (ClientError, OSError):
            continue
    return None


def groups_answer(nodes: list[Target]) -> bool:
    """One of each partition of the internal topic, about."""
    for number in range(8):
        found = asyncio.run(offsets_of(nodes, number))
        if found is None:
            return False
        first = number * POSITIONS_PER_GROUP
        expected = {(TOPIC, place): first + place for place in range(POSITIONS_PER_GROUP)}
        assert found == expected, f"{group_name(number)} has {len(found)} positions, or others"
    return True


ASKING: Final = {"groups": groups_answer, "queues": queues_answer, "schedule": schedule_answers}


def answered_after(nodes: list[Target], began: float) -> dict[str, float]:
    """Seconds from `began` to the right answer of each."""
    found: dict[str, float] = {}
    while len(found) < len(ASKING):
        for subject in [each for each in ASKING if each not in found]:
            if ASKING[subject](nodes):
                found[subject] = round(time.monotonic() - began, 3)
        assert time.monotonic() < began + ANSWER_SECONDS_MAX, f"answered: {found}"
        time.sleep(ASK_AGAIN_SECONDS)
    return found


# The two runs


def work_of(plan: Plan) -> dict[str, Any]:
    return {"delays": plan.delays, "records": plan.records, "queues": plan.queues, "offsets": plan.offsets}


def three_nodes(directory: Path, plan: Plan) -> dict[str, Any]:
    with ExitStack() as stack:
        nodes = [stack.enter_context(node_of(directory, number, has_others=True)) for number in range(1, NODES + 1)]
        tell(directory, 1, {"prepare": NODES})
        filled = tell(directory, 1, work_of(plan))
        others = nodes[1:]
        print(f"three nodes: filled in {filled:.1f} s", flush=True)
        settled = wait_until_settled(lambda: [by_subject(node, "penstock_rehearsals_total") for node in others])
        tell(directory, 1, {"tail": plan.tail})
        rehearsals = [by_subject(node, "penstock_rehearsals_total") for node in others]
        seconds = [by_subject(node, "penstock_rehearsal_seconds_total") for node in others]
        print(f"rehearsed {rehearsals} in {seconds} s, settled after {settled:.1f} s", flush=True)
        before = [by_subject(node, "penstock_takeovers_total") for node in others]
        began = time.monotonic()
        nodes[0].kill()
        since_kill = answered_after(others, began)
        since_election = {
            subject: round(max(by_subject(node, "penstock_takeover_seconds_max").get(subject, 0) for node in others), 3)
            for subject in SUBJECTS
        }
        takeovers = [by_subject(node, "penstock_takeovers_total") for node in others]
        pages = [page(node) for node in others]
    return {
        "filled_seconds": round(filled, 1),
        "rehearsals": rehearsals,
        "rehearsal_seconds": seconds,
        "failed_rehearsals": sum(float(found) for text in pages for found in _failed(text)),
        "takeovers": [
            {subject: now.get(subject, 0) - then.get(subject, 0) for subject in SUBJECTS}
            for now, then in zip(takeovers, before, strict=True)
        ],
        "since_kill_seconds": since_kill,
        "since_election_seconds": since_election,
    }


def _failed(text: str) -> list[str]:
    return re.findall(r"^penstock_rehearsals_failed_total (\S+)$", text, re.MULTILINE)


def one_node(directory: Path, plan: Plan) -> dict[str, Any]:
    with node_of(directory, 1, has_others=False) as node:
        filled = tell(directory, 1, {"prepare": 1, **work_of(plan)})
        print(f"one node: filled in {filled:.1f} s", flush=True)
        # The node looks every half a minute whether one is due.
        deadline = time.monotonic() + SNAPSHOT_SECONDS_MAX
        while len(_snapshots(directory)) < GROUP_PARTITIONS and time.monotonic() < deadline:
            time.sleep(0.5)
        tell(directory, 1, {"tail": plan.tail})
        node.kill()
    began = time.monotonic()
    with node_of(directory, 1, has_others=False) as node:
        since_start = answered_after([node], began)
        ready = round(node.ready_seconds, 3)
        node.kill()
    return {"filled_seconds": round(filled, 1), "ready_seconds": ready, "since_start_seconds": since_start}


def _snapshots(directory: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.stat().st_mtime_ns) for path in directory.rglob(SNAPSHOT_FILE))


def verdict(three: dict[str, Any], one: dict[str, Any]) -> dict[str, Any]:
    """Of each subject: within three seconds of the election, and within twice a restart."""
    told = {}
    for subject in SUBJECTS:
        seconds, restart = three["since_election_seconds"][subject], one["since_start_seconds"][subject]
        told[subject] = {
            "since_election_seconds": seconds,
            "since_kill_seconds": three["since_kill_seconds"][subject],
            "restart_seconds": restart,
            "is_met": seconds <= SECONDS_GOAL and seconds <= TIMES_GOAL * restart,
        }
        print(f"{subject}: {told[subject]}", flush=True)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="of a million of each, and a thousand queues")
    parser.add_argument("--tail", type=int, default=40_000, help="of each, after the last saved start")
    parser.add_argument("--only", choices=("three", "one"))
    parser.add_argument("--no-save", action="store_true")
    arguments = parser.parse_args()
    count = int(1_000_000 * arguments.scale)
    plan = Plan(delays=count, queues=max(10, count // 1_000), records=count, offsets=count, tail=int(arguments.tail))
    (ROOT / "build").mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="takeover-", dir=ROOT / "build"))
    try:
        facts = machine.facts(directory)
        print(report.headline(facts))
        three = three_nodes(directory / "three", plan) if arguments.only != "one" else {}
        print(three, flush=True)
        one = one_node(directory / "one", plan) if arguments.only != "three" else {}
        print(one, flush=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if three and one:
        told = verdict(three, one)
        if not arguments.no_save:
            saved = {"machine": facts, "plan": plan, "three_nodes": three, "one_node": one, "verdict": told}
            print(f"saved bench/results/{result_files.save(NAME, saved).name}")


if __name__ == "__main__":
    main()
