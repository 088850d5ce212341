"""All that a node does for the doors of others."""

from __future__ import annotations

from penstock.broker.forwarded.queues import QueueWork
from penstock.broker.forwarded.schedules import ScheduleWork
from penstock.broker.forwarded.sends import SendWork
from penstock.broker.forwarded.work import DoorWork
from penstock.broker.parts import Parts
from penstock.broker.queue.fifo import FifoSender


def door_work(parts: Parts) -> DoorWork:
    work = DoorWork(parts.broker, parts.topics)
    QueueWork(parts.queues, parts.delivery, parts.schedules).join(work)
    fifo = FifoSender(parts.queues, parts.schedules, parts.publisher, parts.site.clock)
    SendWork(parts.queues, parts.publisher, fifo).join(work)
    ScheduleWork(parts.schedules).join(work)
    return work
