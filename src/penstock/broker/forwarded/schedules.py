"""Delayed messages of partitions that are led here, for the doors of other nodes."""

from __future__ import annotations

from penstock.broker.forwarded.work import DoorWork, Served
from penstock.broker.schedule import elsewhere as bodies
from penstock.broker.schedule.node import NodeSchedules
from penstock.domain.replication.exchange import ForwardKind


class ScheduleWork:
    def __init__(self, schedules: NodeSchedules) -> None:
        self._schedules = schedules

    def join(self, work: DoorWork) -> None:
        work.serve(ForwardKind.PENDING, self._show)
        work.serve(ForwardKind.PENDING_CHANGE, self._change)
        work.serve(ForwardKind.PENDING_PAGE, self._page)

    async def _show(self, served: Served) -> bytes:
        message_id = bodies.SHOWS.decode(served.body).message_id
        return bodies.encode_shown(await self._schedules.show(message_id))

    async def _change(self, served: Served) -> bytes:
        asked = bodies.CHANGES.decode(served.body)
        if asked.due_ms is None:
            return bodies.encode_changed(await self._schedules.cancel(asked.message_id))
        return bodies.encode_changed(await self._schedules.reschedule(asked.message_id, asked.due_ms))

    async def _page(self, served: Served) -> bytes:
        asked = bodies.PAGES.decode(served.body)
        return bodies.encode_page(await self._schedules.list_due(served.topic, asked.after, asked.limit))
