"""The classic group protocol: joining, syncing, heartbeats, leaving, and every way to be wrong about it."""

from __future__ import annotations

from typing import Any

import msgspec

from conformance.differential.talk import Talk, dialogue
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.describe_groups import DescribeGroupsRequest
from penstock.codec.kafka.messages.heartbeat import HeartbeatRequest
from penstock.codec.kafka.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from penstock.codec.kafka.messages.leave_group import LeaveGroupRequest
from penstock.codec.kafka.messages.sync_group import SyncGroupRequest
from support.group.phrases import assigned, heartbeat, join, leave, sync

MEMBERS = (JoinGroupRequest, SyncGroupRequest, HeartbeatRequest, LeaveGroupRequest)


class Group:
    """One group of a talk, spoken to in few words."""

    def __init__(self, talk: Talk, word: str = "group") -> None:
        self.talk = talk
        self.name = talk.name(word)

    def join(self, step: str, member: str = "", *, on: str = "main", **how: Any) -> Any:
        """Joins, a second time where the first only gives an id; both answers are written down."""
        reply = self.talk.ask(step, join(member, group=self.name, **how), on=on)
        if reply.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            reply = self.talk.ask(f"{step}, named", join(reply.member_id, group=self.name, **how), on=on)
        return reply

    def named(self, step: str, **how: Any) -> str:
        """Only the id that a new member is given, where the version gives one first."""
        reply = self.talk.ask(step, join(group=self.name, **how))
        return str(reply.member_id)

    def sync(self, step: str, member: str, generation: int, *, on: str = "main", **how: Any) -> Any:
        given = how.pop("given", {member: assigned("orders", 0, 1)})
        return self.talk.ask(step, sync(member, generation, given, group=self.name, **how), on=on)

    def beat(self, step: str, member: str, generation: int, **how: Any) -> Any:
        return self.talk.ask(step, heartbeat(member, generation, group=self.name, **how))

    def leave(self, step: str, *members: tuple[str, str | None]) -> Any:
        return self.talk.ask(step, leave(*members, group=self.name))

    def describe(self, step: str) -> Any:
        return self.talk.ask(step, DescribeGroupsRequest(groups=(self.name,)))

    def until(self, state: str) -> None:
        request = DescribeGroupsRequest(groups=(self.name,))
        self.talk.quietly_until(request, lambda reply: reply.groups[0].group_state == state)


@dialogue(*MEMBERS)
def classic_group_of_one(talk: Talk) -> None:
    group = Group(talk)
    group.describe("before")
    me = group.join("join")
    group.describe("joined")
    group.beat("heartbeat before sync", me.member_id, me.generation_id)
    group.sync("sync", me.member_id, me.generation_id)
    group.describe("stable")
    group.beat("heartbeat", me.member_id, me.generation_id)
    group.sync("sync again", me.member_id, me.generation_id, given={})
    again = group.join("join again", me.member_id)
    group.beat("old generation", me.member_id, me.generation_id)
    group.sync("sync with the old generation", me.member_id, me.generation_id)
    group.sync("sync with the new one", me.member_id, again.generation_id)
    group.leave("leave", (me.member_id, None))
    group.beat("heartbeat after leaving", me.member_id, again.generation_id)
    group.describe("empty")
    group.leave("leave again", (me.member_id, None))


@dialogue(*MEMBERS)
def classic_group_of_two(talk: Talk) -> None:
    group = Group(talk)
    first = group.join("first joins")
    group.sync("first syncs", first.member_id, first.generation_id)
    second_id = ""
    if talk.version(JoinGroupRequest) >= 4:
        second_id = talk.ask("second is named", join(group=group.name), on="second").member_id
    waiting = talk.send("second joins", join(second_id, group=group.name), on="second")
    group.until("PreparingRebalance")
    group.beat("first is told", first.member_id, first.generation_id)
    first = group.join("first joins again", first.member_id)
    second = talk.hear(waiting)
    given = {first.member_id: assigned("orders", 0), second.member_id: assigned("orders", 1)}
    following = talk.send(
        "follower syncs", sync(second.member_id, second.generation_id, {}, group=group.name), on="second"
    )
    group.sync("leader syncs", first.member_id, first.generation_id, given=given)
    talk.hear(following)
    group.describe("stable")
    group.leave("leader leaves", (first.member_id, None))
    group.beat("follower is told", second.member_id, second.generation_id)
    alone = group.join("follower joins again", second.member_id, on="second")
    group.sync("follower leads", alone.member_id, alone.generation_id)


@dialogue(*MEMBERS)
def classic_group_errors(talk: Talk) -> None:
    group = Group(talk)
    group.beat("heartbeat to no group", "nobody", 0)
    group.sync("sync with no group", "nobody", 0)
    group.leave("leave no group", ("nobody", None))
    group.join("unknown member of no group", "somebody")
    me = group.join("join")
    group.sync("sync", me.member_id, me.generation_id)
    group.join("unknown member", "somebody")
    group.beat("heartbeat of an unknown member", "somebody", me.generation_id)
    group.beat("generation too high", me.member_id, me.generation_id + 1)
    group.beat("generation negative", me.member_id, -1)
    group.sync("sync of an unknown member", "somebody", me.generation_id)
    group.sync("sync too high", me.member_id, me.generation_id + 1)
    group.leave("an unknown member leaves", ("somebody", None))
    group.join("session too short", session_ms=10)
    group.join("session too long", session_ms=2_000_000)
    group.join("other protocol", protocols=("sticky",))
    group.join("other protocol type", protocol_type="connect")
    group.join("no protocols", protocols=())
    group.join("no protocol type", protocol_type="")
    empty = Group(talk)
    empty.name = ""
    empty.join("no group id")
    empty.beat("heartbeat without a group id", "me", 1)
    empty.leave("leave without a group id", ("me", None))
    group.describe("afterwards")


@dialogue(SyncGroupRequest, JoinGroupRequest)
def classic_group_sync_protocols(talk: Talk) -> None:
    group = Group(talk)
    me = group.join("join", protocols=("roundrobin", "range"))
    if talk.version(SyncGroupRequest) >= 5:
        group.sync("other protocol", me.member_id, me.generation_id, protocol="sticky")
        group.sync("no protocol", me.member_id, me.generation_id, protocol=None)
    group.sync("right protocol", me.member_id, me.generation_id, protocol="roundrobin")
    talk.ask("other topics", join(me.member_id, group=group.name, protocols=("roundrobin",), topics=("other",)))
    plain = join(me.member_id, group=group.name, protocols=("roundrobin",))
    changed = msgspec.structs.replace(plain, protocols=(JoinGroupRequestProtocol("roundrobin", b"other bytes"),))
    talk.ask("metadata that is none", changed)


@dialogue(*MEMBERS)
def classic_group_static(talk: Talk) -> None:
    if talk.version(JoinGroupRequest) < 5 or talk.version(SyncGroupRequest) < 3:
        return
    group = Group(talk)
    me = group.join("join", instance_id="one")
    group.sync("sync", me.member_id, me.generation_id, instance_id="one")
    back = group.join("back without an id", instance_id="one")
    group.beat("the old id", me.member_id, me.generation_id, instance_id="one")
    group.sync("the old id syncs", me.member_id, me.generation_id, instance_id="one")
    group.join("the old id joins", me.member_id, instance_id="one")
    group.beat("the new id", back.member_id, back.generation_id, instance_id="one")
    group.sync("the new id syncs", back.member_id, back.generation_id, instance_id="one", given={})
    group.beat("an unknown instance", back.member_id, back.generation_id, instance_id="two")
    group.join("an unknown instance joins with an id", back.member_id, instance_id="two")
    group.describe("stable")
    if talk.version(LeaveGroupRequest) >= 3:
        group.leave("another instance leaves", ("", "two"))
        group.leave("wrong id leaves", (me.member_id, "one"))
        group.leave("several leave", ("nobody", None), ("", "one"), ("", "two"))
        group.describe("empty")


@dialogue(*MEMBERS)
def classic_group_protocol_choice(talk: Talk) -> None:
    """Two members with different wishes: the one that both have."""
    group = Group(talk)
    first = group.join("first joins", protocols=("range", "roundrobin"))
    group.sync("first syncs", first.member_id, first.generation_id)
    second_id = ""
    wishes = ("roundrobin", "sticky")
    if talk.version(JoinGroupRequest) >= 4:
        second_id = talk.ask("named", join(group=group.name, protocols=wishes), on="second").member_id
    waiting = talk.send("second joins", join(second_id, group=group.name, protocols=wishes), on="second")
    group.until("PreparingRebalance")
    group.join("first joins again", first.member_id, protocols=("range", "roundrobin"))
    talk.hear(waiting)
    group.describe("chosen")
    group.join("third fits nobody", protocols=("sticky",))
