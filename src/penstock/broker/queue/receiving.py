"""What receivers ask of the queue of one partition before and after they take: whether there may be something, and what
becomes of messages that nobody takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.broker.queue.messages import Message
from penstock.broker.queue.shell import QueueShell
from penstock.broker.queue.take import release
from penstock.domain.queue.commands import Settle
from penstock.domain.queue.definition import QueueDefinition


def may_have_some(shell: QueueShell, definition: QueueDefinition, consumer: str) -> bool:
    queue = shell.queue(definition.name.group)
    if queue is None or not shell.is_loaded:
        return True  # whoever asks is told
    partition = shell.partition
    end = partition.last_stable_offset if definition.options.is_committed_only else partition.readable_end
    wanted = queue.wanted(consumer, 1, shell.now_ms())
    return wanted.count > 0 and (wanted.ready_count > 0 or any(cursor < end for _, cursor in wanted.cursors))


def give_back(shells: Iterable[QueueShell], group: str, messages: Sequence[Message]) -> None:
    """Nobody is there to take them. They count as delivered, as if their lease had run out, but are free at once."""
    for shell in shells:
        index = shell.partition.index
        items = [
            release(message.record.offset, message.record.offset, message.source.number)
            for message in messages
            if message.source.partition == index
        ]
        if items:
            shell.decide(group, Settle(tuple(items)))
