"""One group and the shell that its contract asks for, for dialogues: ask, hear, let time pass, start again."""

from __future__ import annotations

from penstock.domain.group.commands import (
    Answer,
    ConsumerAlive,
    ConsumerHeartbeat,
    Decision,
    GroupCommand,
    GroupReply,
    Join,
    Joined,
    Load,
    Refused,
    Sync,
    Synced,
    Tick,
)
from penstock.domain.group.machine import Group
from penstock.domain.group.records import GroupRecord
from penstock.domain.group.subscription import NamedPartitions, write_subscription
from penstock.domain.group.values import Assignment, GroupConfig, GroupError
from support.group.world import SimTopics

SESSION_MS = 10_000
REBALANCE_MS = 30_000


class Desk:
    def __init__(self, config: GroupConfig | None = None, **partition_counts: int) -> None:
        self.config = config or GroupConfig(initial_rebalance_delay_ms=0)
        self.topics = SimTopics()
        for name, count in partition_counts.items():
            self.topics.set(name, count)
        self.group = Group(self.config, self.topics)
        self.now_ms = 1_000
        self.log: list[GroupRecord] = []
        self.answers: dict[int, GroupReply] = {}
        # Of the last command.
        self.records: tuple[GroupRecord, ...] = ()
        self._tickets = 0

    # ------------------------------------------------------------------ the shell

    def ask(self, command: GroupCommand) -> GroupReply | None:
        decision = self.group.decide(command, self.now_ms)
        self._carry_out(decision)
        return decision.reply

    def _carry_out(self, decision: Decision) -> None:
        self.records = decision.records
        for record in decision.records:
            self.group.apply(record)
            self.log.append(record)
        for answer in decision.answers:
            assert isinstance(answer, Answer)
            assert answer.ticket not in self.answers, "nobody is answered twice"
            self.answers[answer.ticket] = answer.reply

    def pass_time(self, milliseconds: int) -> None:
        end_ms = self.now_ms + milliseconds
        while (deadline_ms := self.group.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.ask(Tick())
        self.now_ms = end_ms

    def restart(self) -> None:
        self.group = Group(self.config, self.topics)
        for record in self.log:
            self.group.apply(record)
        self.ask(Load())

    # ------------------------------------------------------------------ the classic protocol

    def join(
        self,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        topics: tuple[str, ...] = ("orders",),
        owned: NamedPartitions = (),
        protocols: tuple[str, ...] = ("range",),
        **others: object,
    ) -> int:
        """Returns the ticket; `reply` tells what came of it."""
        self._tickets += 1
        metadata = write_subscription(topics, owned=owned)
        command = Join(
            self._tickets,
            member_id,
            **{  # type: ignore[arg-type]
                "new_member_id": f"new{self._tickets}",
                "protocol_type": "consumer",
                "protocols": tuple((name, metadata) for name in protocols),
                "session_timeout_ms": SESSION_MS,
                "rebalance_timeout_ms": REBALANCE_MS,
                "instance_id": instance_id,
                "requires_known_id": False,
                **others,
            },
        )
        reply = self.ask(command)
        if reply is not None:
            self.answers[self._tickets] = reply
        return self._tickets

    def sync(
        self, member_id: str, generation: int, assignments: dict[str, bytes] | None = None, **others: object
    ) -> int:
        self._tickets += 1
        given = tuple((assignments or {}).items())
        command = Sync(self._tickets, member_id, generation, assignments=given, **others)  # type: ignore[arg-type]
        reply = self.ask(command)
        if reply is not None:
            self.answers[self._tickets] = reply
        return self._tickets

    def joined(self, ticket: int) -> Joined:
        reply = self.answers[ticket]
        assert isinstance(reply, Joined), reply
        return reply

    def synced(self, ticket: int) -> bytes:
        reply = self.answers[ticket]
        assert isinstance(reply, Synced), reply
        return reply.assignment

    def waits(self, ticket: int) -> bool:
        return ticket not in self.answers

    def settle(self, *member_ids: str) -> int:
        """A stable group of these members: new ones by instance id if the name begins with "static"."""
        tickets = []
        for name in member_ids:
            instance_id = name if name.startswith("static") else None
            tickets.append(self.join(instance_id=instance_id, new_member_id=name))
        for name in member_ids:
            if name in self.group.classic.roster.members and name not in self.group.classic.joining:
                self.join(name, instance_id=name if name.startswith("static") else None)
        generation = self.group.classic.generation
        leader = self.group.classic.roster.leader
        assignments = {name: b"for " + name.encode() for name in member_ids}
        for name in sorted(member_ids, key=lambda name: name == leader):
            self.sync(name, generation, assignments if name == leader else None)
        return generation

    # ------------------------------------------------------------------ the consumer protocol

    def beat(self, member_id: str, epoch: int, owned: Assignment | None = None, **others: object) -> ConsumerAlive:
        reply = self.ask(ConsumerHeartbeat(member_id, epoch, owned=owned, **others))  # type: ignore[arg-type]
        assert isinstance(reply, ConsumerAlive), reply
        return reply

    def enter(self, member_id: str, *topic_names: str, **others: object) -> ConsumerAlive:
        wishes: dict[str, object] = {
            "rebalance_timeout_ms": REBALANCE_MS,
            "topic_names": topic_names or ("orders",),
            **others,
        }
        return self.beat(member_id, 0, (), **wishes)

    def refusal(self, command: GroupCommand) -> GroupError:
        reply = self.ask(command)
        assert isinstance(reply, Refused), reply
        return reply.error

    def refused(self, ticket: int) -> GroupError:
        reply = self.answers[ticket]
        assert isinstance(reply, Refused), reply
        return reply.error
