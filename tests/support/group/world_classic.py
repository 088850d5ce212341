"""A client of the classic protocol, eager or cooperative, with the assignor of its kind for when it leads."""

from __future__ import annotations

from functools import partial

from penstock.domain.group.commands import (
    GroupReply,
    Heartbeat,
    Join,
    Joined,
    Leave,
    LeavingMember,
    Refused,
    Sync,
    Synced,
)
from penstock.domain.group.subscription import (
    Subscription,
    partitions_by_id,
    partitions_by_name,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from penstock.domain.group.values import Partition
from support.group.world import World
from support.group.world_clients import (
    REBALANCE_TIMEOUT_MS,
    RETRY_MS,
    SESSION_TIMEOUT_MS,
    STATIC_SESSION_TIMEOUT_MS,
    Client,
)

_HEARTBEAT_MS = 2_000
_JOIN_TIMEOUT_MS = 15_000


class ClassicClient(Client):
    def __init__(
        self,
        world: World,
        name: str,
        *,
        is_cooperative: bool,
        instance_id: str | None = None,
        is_transactional: bool = False,
    ) -> None:
        super().__init__(world, name, instance_id=instance_id, is_transactional=is_transactional)
        self.is_cooperative = is_cooperative
        self._phase = "out"
        # Counts joins: an answer to an earlier one, or a callback begun before it, must not count.
        self._round = 0
        self.at(1, self._join)
        self.every(_HEARTBEAT_MS, self._beat)

    # ------------------------------------------------------------------ join

    def _rejoin(self) -> None:
        """An eager member gives everything up first, a cooperative one keeps it."""
        if self._phase == "giving up" or self.is_leaving:
            return
        if self.is_cooperative or not self.belief.held:
            self._join()
            return
        self._phase = "giving up"
        self.at(self.callback_ms(), lambda: self.commit_before_giving_up(self._join_with_nothing))

    def _join_with_nothing(self) -> None:
        if self._phase == "giving up":
            self.believe(self.belief.epoch, ())
            self._join()

    def _join(self) -> None:
        if self.is_leaving:
            return
        self._phase = "joining"
        self._round += 1
        number = self._round
        owned = partitions_by_name(tuple(sorted(self.belief.held)), self.world.topics)
        metadata = write_subscription(self.world.topics.names(), owned=owned, generation=self.belief.epoch)
        protocol = "cooperative-sticky" if self.is_cooperative else "roundrobin"
        command = Join(
            0,
            self.belief.member_id,
            self.new_member_id(),
            "consumer",
            ((protocol, metadata),),
            SESSION_TIMEOUT_MS if self.instance_id is None else STATIC_SESSION_TIMEOUT_MS,
            REBALANCE_TIMEOUT_MS,
            instance_id=self.instance_id,
        )
        self.send(command, lambda reply: self._joined(reply, number), timeout_ms=_JOIN_TIMEOUT_MS)

    def _joined(self, reply: GroupReply | None, number: int) -> None:
        if number != self._round or self.is_leaving:
            return
        if isinstance(reply, Joined):
            self.belief.member_id = reply.member_id
            self.believe(reply.generation)
            self._phase = "syncing"
            self._sync(reply, number)
        elif isinstance(reply, Refused) and reply.error.name == "MEMBER_ID_REQUIRED":
            self.belief.member_id = reply.member_id
            self.at(1, self._join)
        else:
            self._start_over(reply)

    def _sync(self, joined: Joined, number: int) -> None:
        assignments: tuple[tuple[str, bytes], ...] = ()
        if joined.leader == joined.member_id and not joined.skip_assignment:
            subscriptions = {
                member.member_id: read_subscription(member.metadata) or Subscription(0, ()) for member in joined.members
            }
            assignments = self._assign(subscriptions)
        command = Sync(
            0, joined.member_id, joined.generation, self.instance_id, "consumer", joined.protocol, assignments
        )
        self.send(command, lambda reply: self._synced(reply, number), timeout_ms=_JOIN_TIMEOUT_MS)

    def _synced(self, reply: GroupReply | None, number: int) -> None:
        if number != self._round or self.is_leaving:
            return
        if not isinstance(reply, Synced):
            self._start_over(reply)
            return
        assigned = set(partitions_by_id(read_assignment(reply.assignment) or (), self.world.topics))
        self._phase = "stable"
        lost = self.belief.held - assigned
        if lost:
            # Cooperative: the others wait for this to be given up, and learn of it by the next join.
            self._phase = "giving up"
            gave_up = partial(self._gave_up, assigned, number)
            self.at(self.callback_ms(), lambda: self.commit_before_giving_up(gave_up))
        else:
            self.believe(self.belief.epoch, assigned)

    def _gave_up(self, assigned: set[Partition], number: int) -> None:
        if number == self._round and self._phase == "giving up":
            self.believe(self.belief.epoch, assigned)
            self._join()

    # ------------------------------------------------------------------ stay

    def _beat(self) -> None:
        if self._phase not in ("stable", "giving up") or self.is_leaving:
            return
        number = self._round
        command = Heartbeat(self.belief.member_id, self.belief.epoch, self.instance_id)
        self.send(command, lambda reply: self._heard(reply, number))

    def _heard(self, reply: GroupReply | None, number: int) -> None:
        if isinstance(reply, Refused) and number == self._round and self._phase in ("stable", "giving up"):
            if reply.error.name == "REBALANCE_IN_PROGRESS":
                if self._phase == "stable":
                    self._rejoin()
            else:
                self._start_over(reply)

    def _start_over(self, reply: GroupReply | None) -> None:
        """Silence or a rebalance: join again. Anything else: it is out, and holds nothing any more."""
        if isinstance(reply, Refused):
            self.note_refusal(
                reply, ("REBALANCE_IN_PROGRESS", "ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID")
            )
            if reply.error.name != "REBALANCE_IN_PROGRESS":
                self.believe(-1, ())
            if reply.error.name in ("UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID"):
                self.belief.member_id = ""
        self._phase = "out"
        self._round += 1
        number = self._round
        self.at(RETRY_MS, lambda: self._rejoin() if number == self._round else None)

    def topics_changed(self) -> None:
        if self._phase == "stable":
            self._rejoin()

    def leave(self) -> None:
        self.is_leaving = True
        self.commit(self._say_goodbye)

    def _say_goodbye(self) -> None:
        self.belief.held.clear()
        if self.instance_id is not None or not self.belief.member_id:
            # A static member goes without a word: it will be back.
            self.kill()
            return
        command = Leave((LeavingMember(self.belief.member_id, self.instance_id),))
        self.send(command, lambda _reply: self.kill())

    def is_settled(self) -> bool:
        return self._phase == "stable"

    # ------------------------------------------------------------------ lead

    def _assign(self, subscriptions: dict[str, Subscription]) -> tuple[tuple[str, bytes], ...]:
        members = sorted(subscriptions)
        owners = self._claims(subscriptions) if self.is_cooperative else {}
        shares: dict[str, list[Partition]] = {member_id: [] for member_id in members}
        partitions = self.world.topics.partitions()
        share_max = -(-len(partitions) // len(members))
        homeless = []
        for partition in partitions:
            owner = owners.get(partition)
            if owner is not None and len(shares[owner]) < share_max:
                shares[owner].append(partition)
            else:
                homeless.append(partition)
        for partition in homeless:
            shares[min(members, key=lambda member_id: (len(shares[member_id]), member_id))].append(partition)
        self._even_out(shares)
        # What somebody else still holds is given to nobody in this round.
        return tuple(
            (
                member_id,
                write_assignment(
                    partitions_by_name(
                        tuple(each for each in shares[member_id] if owners.get(each, member_id) == member_id),
                        self.world.topics,
                    ),
                    version=3,
                ),
            )
            for member_id in members
        )

    def _claims(self, subscriptions: dict[str, Subscription]) -> dict[Partition, str]:
        """Of two who claim a partition, the one that heard last knows better."""
        claims: dict[Partition, tuple[int, str]] = {}
        for member_id, subscription in sorted(subscriptions.items()):
            for partition in partitions_by_id(subscription.owned or (), self.world.topics):
                claim = (subscription.generation, member_id)
                claims[partition] = max(claims.get(partition, claim), claim)
        return {partition: member_id for partition, (_generation, member_id) in claims.items()}

    def _even_out(self, shares: dict[str, list[Partition]]) -> None:
        while True:
            fullest = max(shares, key=lambda member_id: len(shares[member_id]))
            emptiest = min(shares, key=lambda member_id: len(shares[member_id]))
            if len(shares[fullest]) - len(shares[emptiest]) < 2:
                return
            shares[emptiest].append(shares[fullest].pop())
