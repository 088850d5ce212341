"""What consumers decide about messages, by their receipts: accepted, given back, rejected, kept longer.

Receipts come in the order in which their messages were delivered, nearly always all of them: neighbours with the same
fate are one item for the machine, a hundred messages for the price of one. Only where that item is refused they are
asked about one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.broker.queue.node import NodeQueues
from penstock.broker.queue.shell import QueueShell, QueueUnavailable
from penstock.broker.topic.not_here import NotHere
from penstock.domain.queue.commands import Act, Outcome, Settle, Settled, Settlement
from penstock.domain.queue.definition import QueueName
from penstock.domain.queue.receipt import Receipt


class NoSuchQueue(msgspec.Struct, frozen=True):
    name: QueueName


class ReceiptSettlement(msgspec.Struct, frozen=True):
    receipt: Receipt
    act: Act
    delay_ms: int | None = None
    text: str = ""


SettleOutcome = Outcome | QueueUnavailable

_LOST: Final = QueueUnavailable("the disk did not take the queue's journal")


async def settle_by_receipts(
    queues: NodeQueues, name: QueueName, items: Sequence[ReceiptSettlement], away: list[int] | None = None
) -> list[SettleOutcome] | NoSuchQueue:
    """One outcome for each, durable. Receipts of another topic, or of one that was deleted, are NOT_HELD. `away` gets
    the places of those whose partitions other nodes lead."""
    topic, definition = queues.broker.topic(name.topic), queues.get(name)
    if definition is None or topic is None:
        return NoSuchQueue(name)
    outcomes: list[SettleOutcome] = [Outcome.NOT_HELD] * len(items)
    by_partition: dict[int, list[int]] = {}
    topic_id, partition_count = topic.topic_id, topic.partition_count
    for place, item in enumerate(items):
        receipt = item.receipt
        if receipt.topic_id == topic_id and 0 <= receipt.partition < partition_count:
            by_partition.setdefault(receipt.partition, []).append(place)
    decided: list[tuple[QueueShell, list[int]]] = []
    for index, places in by_partition.items():
        partition = topic.find(index)
        if isinstance(partition, NotHere):
            for place in places:
                outcomes[place] = QueueUnavailable(partition.detail)
            if away is not None:
                away += places
            continue
        shell = await queues.shell_for(definition, partition)
        found = _settle(shell, name.group, [items[place] for place in places])
        for place, outcome in zip(places, found, strict=True):
            outcomes[place] = outcome
        decided.append((shell, places))
    for shell, places in decided:
        unavailable: QueueUnavailable | None = None
        if not await shell.is_durable():
            unavailable = _LOST
        elif all(outcomes[place] is not Outcome.DONE for place in places):
            # Nothing was written for them.
            unavailable = shell.refuse_look()
        if unavailable is not None:
            for place in places:
                outcomes[place] = unavailable
    return outcomes


def _settle(shell: QueueShell, group: str, items: Sequence[ReceiptSettlement]) -> list[SettleOutcome]:
    """No await: nobody comes between asking about many and asking about each of them."""
    runs = _runs(items)
    reply = shell.decide(group, Settle(tuple(settlement for settlement, _ in runs)))
    if not isinstance(reply, Settled):
        refused = reply if isinstance(reply, QueueUnavailable) else QueueUnavailable(str(reply))
        return [refused] * len(items)
    outcomes: list[SettleOutcome] = []
    for (run, count), outcome in zip(runs, reply.outcomes, strict=True):
        if outcome is Outcome.NOT_HELD and count > 1:
            each = shell.decide(group, Settle(tuple(_one(run, offset) for offset in range(run.first, run.last + 1))))
            assert isinstance(each, Settled), "it has answered a moment ago"
            outcomes += each.outcomes
        else:
            outcomes += [outcome] * count
    return outcomes


def _runs(items: Sequence[ReceiptSettlement]) -> list[tuple[Settlement, int]]:
    """Settlements of neighbours, and how many items each stands for."""
    runs: list[tuple[Settlement, int]] = []
    begin = items[0]
    first, count = begin.receipt.offset, 1
    for item in items[1:]:
        receipt = item.receipt
        if (
            receipt.offset == first + count
            and receipt.number == begin.receipt.number
            and item.act is begin.act
            and item.delay_ms == begin.delay_ms
            and item.text == begin.text
        ):
            count += 1
            continue
        runs.append((_run(begin, first, count), count))
        begin, first, count = item, receipt.offset, 1
    runs.append((_run(begin, first, count), count))
    return runs


def _run(item: ReceiptSettlement, first: int, count: int) -> Settlement:
    return Settlement(first, first + count - 1, item.act, item.receipt.number, item.delay_ms, item.text)


def _one(run: Settlement, offset: int) -> Settlement:
    return Settlement(offset, offset, run.act, run.number, run.delay_ms, run.text)
