"""A group of real consumers over flowing records, of which one leaves and one is killed: what the others notice.

    flow        one process, a record for each partition every `FLOW_INTERVAL_MS`
    stayers     some processes, all members but two
    leaver      one process with one member that says goodbye; the coordinator knows when it gets the word
    victim      one process with one member, killed; the coordinator knows when the member's time is up

When it knows of the victim is asked of the coordinator itself, every few milliseconds: a heartbeat in the victim's name
with an epoch that never was is refused in one way while the member is known, and in another when it is gone. Times are
taken from the last answer of the first kind, so that no figure is flattered.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from bench.rebalance_gaps import STEADY_SECONDS, Departure, departure
from bench.rebalance_members import Arrivals, Members
from penstock.client.kafka import admin
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.groups import GroupInfo, describe_group
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from penstock.codec.kafka.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from penstock.net.address import parse_addresses
from penstock.net.errors import ClientError

FLOW_INTERVAL_MS: Final = 100
MEMBERS_PER_PROCESS: Final = 25
# Of classic members; those of the consumer protocol are told by the coordinator.
CLASSIC_HEARTBEAT_MS: Final = 500
SETTLE_SECONDS_MAX: Final = 120.0
PROBE_SECONDS: Final = 0.01
NO_SUCH_EPOCH: Final = 1_000_000_000

PROTOCOLS: Final[dict[str, dict[str, str | int | bool]]] = {
    "consumer": {"group.protocol": "consumer"},
    "classic": {
        "partition.assignment.strategy": "cooperative-sticky",
        "heartbeat.interval.ms": CLASSIC_HEARTBEAT_MS,
    },
}


class GroupPlan(msgspec.Struct, frozen=True, kw_only=True):
    protocol: str
    members: int
    partitions: int
    directory: Path
    # Known when the node runs.
    bootstrap: str = ""
    session_ms: int = 6_000
    # Between two events: long enough for what one did to be over before the other, and for a steady state to show.
    calm_seconds: float = 2 * STEADY_SECONDS

    @property
    def topic(self) -> str:
        return f"flow-{self.protocol}"

    @property
    def environment(self) -> dict[str, str]:
        """Of a node that this group is to be on."""
        return {
            "PENSTOCK_GROUPS__CONSUMER_SESSION_TIMEOUT_MS": str(self.session_ms),
            "PENSTOCK_GROUPS__SESSION_TIMEOUT_MS_MIN": "1000",
            "PENSTOCK_GROUPS__INITIAL_REBALANCE_DELAY_MS": "1000",
        }

    @property
    def settings(self) -> dict[str, str | int | bool]:
        """Of its members. A session of the consumer protocol is the node's to say."""
        chosen = PROTOCOLS[self.protocol]
        return chosen if self.protocol == "consumer" else {**chosen, "session.timeout.ms": self.session_ms}


class MemberProcess:
    def __init__(self, plan: GroupPlan, names: list[str], *, first: int) -> None:
        self.arrivals_path = plan.directory / f"{plan.protocol}-{first}.arrivals"
        work = Members(
            bootstrap=plan.bootstrap,
            topic=plan.topic,
            group=plan.protocol,
            names=names,
            first=first,
            arrivals_path=str(self.arrivals_path),
            settings=plan.settings,
        )
        command = [sys.executable, "-m", "bench.rebalance_members", msgspec.json.encode(work).decode()]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, command: str) -> str:
        """The line with which it answers."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def measure(plan: GroupPlan) -> list[Departure]:
    """The leaving, then the killing."""
    with ExitStack() as stack:
        asyncio.run(_create(plan))
        stack.enter_context(_flow(plan))
        processes = [stack.enter_context(_members(plan, names, first)) for first, names in _shares(plan.members)]
        stayers, leaver, victim = processes[:-2], processes[-2], processes[-1]
        asyncio.run(_settled(plan, plan.members))
        # Librdkafka's first seconds are none: each partition looks up its offset, each consumer its brokers.
        time.sleep(plan.calm_seconds)
        left_at = float(leaver.tell("leave").split()[1])
        time.sleep(plan.calm_seconds)
        killed_at, known_at = asyncio.run(_kill(plan, victim))
        time.sleep(plan.calm_seconds)
        ended_at = time.monotonic()
        arrivals = Arrivals()
        for process in (*stayers, leaver):
            assert process.tell("stop") == "stopped"
        for process in processes:
            arrivals.load(process.arrivals_path)
    leaver_had = _received(arrivals, before=left_at, member=plan.members - 2)
    victim_had = _received(arrivals, before=killed_at, member=plan.members - 1)
    left = departure(arrivals, how="left", gone=plan.members - 2, moved=leaver_had, known_at=left_at, until=killed_at)
    killed = departure(
        arrivals, how="killed", gone=plan.members - 1, moved=victim_had, known_at=known_at, until=ended_at
    )
    return [left, killed]


def _shares(members: int) -> Iterator[tuple[int, list[str]]]:
    """(the first one's number, names) of each process; the last two processes have one member each."""
    names = [f"member-{number}" for number in range(members)]
    for first in range(0, members - 2, MEMBERS_PER_PROCESS):
        yield first, names[first : min(first + MEMBERS_PER_PROCESS, members - 2)]
    yield members - 2, names[-2:-1]
    yield members - 1, names[-1:]


@contextmanager
def _members(plan: GroupPlan, names: list[str], first: int) -> Iterator[MemberProcess]:
    members = MemberProcess(plan, names, first=first)
    try:
        yield members
    finally:
        members.end()


@contextmanager
def _flow(plan: GroupPlan) -> Iterator[None]:
    words = [plan.bootstrap, plan.topic, str(plan.partitions), str(FLOW_INTERVAL_MS)]
    process = subprocess.Popen([sys.executable, "-m", "bench.rebalance_flow", *words])
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def _create(plan: GroupPlan) -> None:
    async with ClusterClient(parse_addresses(plan.bootstrap)) as client:
        # What a produce waits for is not what is measured here.
        await admin.create_topic(client, plan.topic, partitions=plan.partitions, configs={"durability": "interval"})


async def _settled(plan: GroupPlan, members: int) -> GroupInfo:
    """Waits until everybody has a share, and nothing moves any more."""
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    async with ClusterClient(parse_addresses(plan.bootstrap)) as client:
        while True:
            info = await _described(client, plan)
            if info is not None and _is_settled(info, plan, members):
                return info
            assert time.monotonic() < deadline, f"the group has not settled: {info and info.state}"
            await asyncio.sleep(0.25)


async def _described(client: ClusterClient, plan: GroupPlan) -> GroupInfo | None:
    try:
        return await describe_group(client, plan.protocol)
    except ClientError:
        return None


def _is_settled(info: GroupInfo, plan: GroupPlan, members: int) -> bool:
    shares = [len(member.assigned) for member in info.members]
    return info.state == "Stable" and len(shares) == members and min(shares) > 0 and sum(shares) == plan.partitions


async def _kill(plan: GroupPlan, victim: MemberProcess) -> tuple[float, float]:
    """When it was killed, and the last moment at which the coordinator still counted on it."""
    info = await _settled(plan, plan.members - 1)
    (member_id,) = [member.member_id for member in info.members if member.client_id == f"member-{plan.members - 1}"]
    # It may have inherited from the leaver, and takes to its grave what it has not told.
    assert victim.tell("save") == "saved"
    victim.end()
    killed_at = time.monotonic()
    async with ClusterClient(parse_addresses(plan.bootstrap)) as client:
        known_at = killed_at
        while True:
            asked_at = time.monotonic()
            if await _is_gone(client, plan, member_id):
                return killed_at, known_at
            known_at = asked_at
            assert asked_at < killed_at + 2 * plan.session_ms / 1000, "the member was never missed"
            await asyncio.sleep(PROBE_SECONDS)


async def _is_gone(client: ClusterClient, plan: GroupPlan, member_id: str) -> bool:
    connection = await client.any_connection()
    if plan.protocol == "consumer":
        request = ConsumerGroupHeartbeatRequest(group_id=plan.protocol, member_id=member_id, member_epoch=NO_SUCH_EPOCH)
        code = (await connection.call(request, ConsumerGroupHeartbeatResponse)).error_code
    else:
        classic = HeartbeatRequest(group_id=plan.protocol, member_id=member_id, generation_id=NO_SUCH_EPOCH)
        code = (await connection.call(classic, HeartbeatResponse)).error_code
    assert code != 0, "a heartbeat of an epoch that never was has been taken"
    return code == ErrorCode.UNKNOWN_MEMBER_ID


def _received(arrivals: Arrivals, *, before: float, member: int) -> set[int]:
    """Partitions of which a record came to this member in the second before."""
    columns = zip(arrivals.seconds, arrivals.members, arrivals.partitions, strict=True)
    return {
        partition for seconds, receiver, partition in columns if before - 1.0 <= seconds < before and receiver == member
    }
