"""A partition with several replicas, on the node that leads it: three logs, one book of followers, one in-sync set.

    shell: written, synced ──► LedLog ──► LeaderProgress (pure) ──► watermarks ──► shell: readable, commitments kept
    feed: a follower's fetch ─────────────────┘      └──► somebody lags or has caught up ──► in_sync: compare-and-set

A group lives for one epoch. The data log is always there; the queue journal and the schedule are opened at first use,
and until then are logs that are empty and end at 0. What a follower holds counts in all three.

Rules:
- Nothing here decides who is in sync or what is committed: the book does, and is told of everything that happens.
- Whoever hears of a watermark may write at once, and so move it again: there is no state between two calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from penstock.broker.partition.commitment import Commitment, Loss
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.topic.companion import CompanionKind, companion_id
from penstock.cluster.catalog.partition_image import Stated
from penstock.domain.replication.exchange import LogName
from penstock.domain.replication.progress import GroupLog, LeaderProgress

KINDS: Final[Mapping[GroupLog, CompanionKind]] = {
    GroupLog.QUEUE_JOURNAL: CompanionKind.QUEUES,
    GroupLog.SCHEDULE: CompanionKind.SCHEDULE,
}
NUMBERS: Final[Mapping[CompanionKind, GroupLog]] = {kind: number for number, kind in KINDS.items()}


def log_names(topic_id: bytes, index: int) -> tuple[LogName, ...]:
    """Of the three logs of a partition, in their order."""
    ids = (topic_id, *(companion_id(topic_id, kind) for kind in KINDS.values()))
    return tuple(LogName(each, index) for each in ids)


class Subscriber(Protocol):
    """A follower's session, as a log that it follows tells it."""

    @property
    def node_id(self) -> int: ...

    @property
    def followed_ms(self) -> int:
        """When that node surely followed what it is subscribed to, by the monotonic clock."""
        ...

    def on_data(self, log: LedLog) -> None:
        """There is more in it."""
        ...

    def on_news(self, log: LedLog) -> None:
        """More of it is committed, or it begins later."""
        ...

    def on_end(self, log: LedLog) -> None:
        """This node no longer leads it in this epoch."""
        ...

    def ask_again(self, log: LedLog) -> None:
        """The node has to name it once more."""
        ...


class GroupListener(Protocol):
    """The node, as its groups tell it."""

    def on_restless(self, group: ReplicaGroup) -> None:
        """A follower may fall behind from now on: it is to be looked at with time."""
        ...

    def on_change_wanted(self, group: ReplicaGroup) -> None:
        """Somebody may be due to join the set."""
        ...

    def on_failed(self, group: ReplicaGroup) -> None:
        """This node's disk has failed one of the logs."""
        ...

    def may_look(self, group: ReplicaGroup) -> bool:
        """What is known of the partition here is no older than a second: nobody else has led it for longer."""
        ...

    def on_full(self, group: ReplicaGroup) -> None:
        """This node's disk has no room for what somebody wanted to write."""
        ...


class LedLog:
    """One of the three; a `ReplicaListener` of its shell."""

    __slots__ = ("_group", "name", "number", "shell", "subscribers")

    def __init__(self, group: ReplicaGroup, number: GroupLog, name: LogName, shell: PartitionShell | None) -> None:
        self._group = group
        self.number = number
        self.name = name
        self.shell: PartitionShell | None = None
        # A dict keeps their order: a seed must give the same run twice.
        self.subscribers: dict[Subscriber, None] = {}
        if shell is not None:
            self.attach(shell)

    def attach(self, shell: PartitionShell) -> None:
        assert shell.replicated is not None, "its role says that others have it too"
        self.shell = shell
        shell.replicated.listener = self

    def detach(self) -> None:
        if self.shell is not None and self.shell.replicated is not None and self.shell.replicated.listener is self:
            self.shell.replicated.listener = None
        subscribers, self.subscribers = self.subscribers, {}
        for subscriber in subscribers:
            subscriber.on_end(self)

    @property
    def group(self) -> ReplicaGroup:
        return self._group

    @property
    def log_start(self) -> int:
        return 0 if self.shell is None else self.shell.log.log_start

    @property
    def log_end(self) -> int:
        return 0 if self.shell is None else self.shell.log.log_end

    @property
    def watermark(self) -> int:
        return 0 if self.shell is None else self.shell.log.readable_end

    @property
    def own_end(self) -> int:
        replicated = None if self.shell is None else self.shell.replicated
        return 0 if replicated is None else replicated.own_end

    # What its shell tells

    def on_written(self) -> None:
        for subscriber in list(self.subscribers):
            subscriber.on_data(self)
        self._group.on_written(self)

    def on_own_end(self) -> None:
        self._group.on_own_end(self)

    def on_log_start(self, start: int) -> Commitment:
        for subscriber in list(self.subscribers):
            subscriber.on_news(self)
        return self._group.when_start_told(self, start)

    def on_failed(self) -> None:
        self._group.on_failed()

    def may_look(self) -> bool:
        return self._group.may_look()

    def on_full(self) -> None:
        self._group.on_full()


class ReplicaGroup:
    def __init__(
        self,
        partition: PartitionShell,
        companions: Mapping[CompanionKind, PartitionShell],
        stated: Stated,
        *,
        node_id: int,
        minimum: int,
        now_ms: int,
        listener: GroupListener,
    ) -> None:
        """The role of all shells is given, and their epoch noted."""
        self.partition = partition
        self.index = partition.index
        self.topic_id = partition.log.home.topic_id
        self.epoch = stated.state.epoch
        self.is_over = False
        self._began_ms = now_ms
        self._listener = listener
        self._waiting_for_barrier: list[Callable[[], None]] = []
        # Those who deleted records, and where the log is to begin.
        self._waiting_for_start: list[tuple[LedLog, int, Commitment]] = []
        shells: dict[GroupLog, PartitionShell] = {GroupLog.DATA: partition}
        shells.update({NUMBERS[kind]: shell for kind, shell in companions.items()})
        names = log_names(self.topic_id, self.index)
        self.logs = tuple(LedLog(self, number, names[number], shells.get(number)) for number in GroupLog)
        self.progress = LeaderProgress(
            node_id,
            stated.state,
            stated.state_epoch,
            minimum=minimum,
            log_ends=[log.shell.epoch_start if log.shell is not None else 0 for log in self.logs],
            watermarks=[log.watermark for log in self.logs],
            now_ms=now_ms,
        )
        for log in self.logs:
            self.progress.on_own_end(log.number, log.own_end)
        # What an earlier role has left unsynced: nobody else would ask the disk for it.
        for log in self.logs:
            if log.shell is not None and log.shell.replicated is not None:
                log.shell.replicated.own()
        self._publish()

    def __repr__(self) -> str:
        return f"<ReplicaGroup {self.partition.topic}-{self.index} epoch {self.epoch}>"

    @property
    def log_ends(self) -> list[int]:
        return [log.log_end for log in self.logs]

    @property
    def is_short(self) -> bool:
        """Not everybody is in sync who should be, or is about to."""
        state = self.progress.state
        return len(state.in_sync) < len(state.replicas) + len(state.adding)

    @property
    def is_under_replicated(self) -> bool:
        """Fewer are in sync than there are replicas; who is being added is none yet."""
        return len(self.progress.state.in_sync) < len(self.progress.state.replicas)

    @property
    def is_even(self) -> bool:
        """Everybody who is waited for holds everything that is there."""
        return self.progress.is_even(self.log_ends)

    # Looks

    def may_look(self) -> bool:
        return not self.is_over and self._listener.may_look(self)

    def followed_ms(self) -> dict[int, int]:
        """When each node surely followed this leader in this epoch; one that turns to another leader takes all three
        logs out at once."""
        followed: dict[int, int] = {}
        for log in self.logs:
            for subscriber in log.subscribers:
                node_id = subscriber.node_id
                followed[node_id] = max(followed.get(node_id, subscriber.followed_ms), subscriber.followed_ms)
        return followed

    def silent_since(self, since_ms: int) -> list[int]:
        """Members of the set that have not proved since then that they follow."""
        if self._began_ms >= since_ms:
            return []
        followed, progress = self.followed_ms(), self.progress
        members = (node for node in progress.state.in_sync if node != progress.node)
        return [node for node in members if followed.get(node, since_ms - 1) < since_ms]

    def ask_again(self, nodes: Collection[int]) -> None:
        """Who leaves the set comes back when it has named its logs anew. Of a log that does not change it would not do
        so by itself: all that it holds it has told before."""
        for log in self.logs if nodes else ():
            for subscriber in [each for each in log.subscribers if each.node_id in nodes]:
                subscriber.ask_again(log)

    # The barrier

    @property
    def has_barrier(self) -> bool:
        """All that was there when the epoch began is committed: machines may be loaded, and may decide."""
        return self.progress.has_barrier

    def when_barrier(self, callback: Callable[[], None]) -> None:
        """Once; at once if it is reached. Not at all if the lead is lost before: whoever waits hears of that anyway."""
        if self.has_barrier:
            callback()
        else:
            self._waiting_for_barrier.append(callback)

    # What happens

    def attach(self, kind: CompanionKind, shell: PartitionShell) -> None:
        """A companion was opened, at its first use; nothing is in it."""
        log = self.logs[NUMBERS[kind]]
        if log.shell is None:
            log.attach(shell)

    def on_written(self, log: LedLog) -> None:
        self._listener.on_restless(self)
        # Where the topic promises less than the disk, what is written is the own end.
        if log.shell is not None and log.shell.replicated is not None and not log.shell.replicated.is_synced:
            self.on_own_end(log)

    def on_own_end(self, log: LedLog) -> None:
        if not self.is_over and self.progress.on_own_end(log.number, log.own_end):
            self._publish()

    def on_failed(self) -> None:
        if not self.is_over:
            self._listener.on_failed(self)

    def on_full(self) -> None:
        if not self.is_over:
            self._listener.on_full(self)

    def on_fetch(self, log: LedLog, *, follower: int, life: int, offset: int, log_start: int) -> None:
        """Of a replica that may fetch, and whose log agrees with this one up to the offset."""
        progress = self.progress
        if progress.on_fetch(follower, log.number, offset=offset, log_start=log_start, life=life):
            self._publish()
        if self._waiting_for_start:
            self._look_at_starts()
        if follower not in progress.state.in_sync and offset >= progress.watermarks[log.number]:
            self._listener.on_change_wanted(self)

    def when_start_told(self, log: LedLog, start: int) -> Commitment:
        commitment = Commitment()
        self._waiting_for_start.append((log, start, commitment))
        self._look_at_starts()
        return commitment

    def _look_at_starts(self) -> None:
        waiting, self._waiting_for_start = self._waiting_for_start, []
        for each in waiting:
            log, start, commitment = each
            if self.progress.told_log_start(log.number, log.log_start) >= start:
                commitment.settle()
            elif not commitment.is_known:
                self._waiting_for_start.append(each)

    def on_stored(self, stated: Stated) -> None:
        self.progress.on_stored(stated.state, stated.state_epoch)
        self._publish()
        # Who has left the set is not waited for.
        self._look_at_starts()

    def on_minimum(self, minimum: int) -> None:
        self.progress.on_minimum(minimum)
        self._publish()
        # Whoever was eligible is so no longer where the minimum is reached.
        self._listener.on_change_wanted(self)

    def settle(self) -> None:
        """The book has been told something: what follows from it is done."""
        if not self.is_over:
            self._publish()

    def close(self) -> None:
        """The lead is lost, or begins anew."""
        self.is_over = True
        self._waiting_for_barrier.clear()
        waiting, self._waiting_for_start = self._waiting_for_start, []
        for _, _, commitment in waiting:
            commitment.settle(Loss.LEADERSHIP)
        for log in self.logs:
            log.detach()

    def _publish(self) -> None:
        is_writable = self.progress.is_writable
        for log in self.logs:
            replicated = None if log.shell is None else log.shell.replicated
            if replicated is None:
                continue
            replicated.has_enough = is_writable
            before = log.watermark
            replicated.advance(self.progress.watermarks[log.number])
            if log.watermark != before:
                for subscriber in list(log.subscribers):
                    subscriber.on_news(log)
        if self._waiting_for_barrier and self.has_barrier and not self.is_over:
            waiting, self._waiting_for_barrier = self._waiting_for_barrier, []
            for callback in waiting:
                callback()
