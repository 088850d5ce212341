"""A client of the consumer protocol (KIP-848), as librdkafka and the Java client behave."""

from __future__ import annotations

from penstock.domain.group.commands import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerAlive,
    ConsumerHeartbeat,
    FetchOffsets,
    GroupReply,
    PartitionName,
    Refused,
)
from penstock.domain.group.values import Partition
from support.group.world import World
from support.group.world_clients import REBALANCE_TIMEOUT_MS, RETRY_MS, Client


class ConsumerClient(Client):
    def __init__(
        self, world: World, name: str, *, instance_id: str | None = None, is_transactional: bool = False
    ) -> None:
        super().__init__(world, name, instance_id=instance_id, is_transactional=is_transactional)
        self.belief.member_id = self.new_member_id()
        self.belief.epoch = JOIN_EPOCH
        self._assigned: set[Partition] = set()
        self._reported: set[Partition] | None = None
        self._is_unsure = True
        self._beat_is_under_way = False
        self._is_adapting = False
        self._next_beat = 0
        self._beat_soon(1)

    def _beat_soon(self, delay_ms: int) -> None:
        """Only the last one asked for happens."""
        self._next_beat += 1
        number = self._next_beat
        self.at(delay_ms, lambda: self._beat() if number == self._next_beat else None)

    def _beat(self) -> None:
        if self._beat_is_under_way or self.is_leaving:
            return
        self._beat_is_under_way = True
        held = self.belief.held
        joins = self.belief.epoch == JOIN_EPOCH
        is_full = joins or self._is_unsure
        command = ConsumerHeartbeat(
            self.belief.member_id,
            self.belief.epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if is_full else -1,
            topic_names=tuple(self.world.topics.names()[:1]) if is_full else None,
            topic_regex="t" if is_full else None,
            owned=tuple(sorted(held)) if is_full or held != self._reported else None,
        )
        self._reported = set(held)
        self.send(command, self._heard)

    def _heard(self, reply: GroupReply | None) -> None:
        self._beat_is_under_way = False
        if self.is_leaving:
            return
        if isinstance(reply, ConsumerAlive):
            self._is_unsure = False
            if reply.assignment is not None:
                self._assigned = set(reply.assignment)
            self.believe(reply.member_epoch)
            self._beat_soon(reply.heartbeat_interval_ms)
            self._adapt()
        elif reply is None:
            self._is_unsure = True
            self._beat_soon(RETRY_MS)
        else:
            assert isinstance(reply, Refused)
            self.note_refusal(reply, ("FENCED_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID", "UNRELEASED_INSTANCE_ID"))
            self._abandon()

    def _abandon(self) -> None:
        self._assigned = set()
        self.believe(JOIN_EPOCH, ())
        self._beat_soon(RETRY_MS)

    def _adapt(self) -> None:
        """First gives up, which takes its callback some time and ends with a commit; then takes what is new."""
        if self._is_adapting or self._assigned == self.belief.held:
            return
        self._is_adapting = True
        needs_time = self.belief.held - self._assigned
        self.at(self.callback_ms() if needs_time else 1, self._give_up)

    def _give_up(self) -> None:
        if self.belief.held - self._assigned:
            self.commit_before_giving_up(self._adapted)
        else:
            self._adapted()

    def _adapted(self) -> None:
        self._is_adapting = False
        if self.belief.epoch == JOIN_EPOCH or self.is_leaving:
            return
        self.believe(self.belief.epoch, self._assigned)
        self._beat_soon(1)

    def fetch_command(self, partitions: tuple[PartitionName, ...]) -> FetchOffsets:
        return FetchOffsets(partitions, self.belief.member_id, self.belief.epoch, requires_stable=True)

    def leave(self) -> None:
        """For good, or, if it is static, for a while: its next process has the same instance id."""
        self.is_leaving = True
        self.commit(self._say_goodbye)

    def _say_goodbye(self) -> None:
        epoch = LEAVE_EPOCH if self.instance_id is None else STATIC_LEAVE_EPOCH
        command = ConsumerHeartbeat(self.belief.member_id, epoch, instance_id=self.instance_id)
        self.belief.held.clear()
        self.send(command, lambda _reply: self.kill())

    def is_settled(self) -> bool:
        return not self._is_adapting and self._assigned == self.belief.held and self.belief.epoch > JOIN_EPOCH
