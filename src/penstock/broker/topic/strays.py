"""Logs on this node's disk that nobody has assigned to it: set aside, kept for a day, and told of.

    found at the start       ─┐
    moved away while it runs ─┴─► closed ─► renamed `.stray` ─► a day later removed (upkeep)

Rules:
- Only of topics that the metadata know and have placed. What they do not know is a misfit, and the start is refused
  (`directory/agreement`); what was deleted goes with its topic.
- Who gets a partition back whose log is being set aside waits for that, and begins with an empty one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.broker.topic.companion import CompanionKind, companion_id
from penstock.storage.errors import StorageError
from penstock.storage.log.checkpoint_file import LogKey
from penstock.storage.repair.directory import TopicOnDisk
from penstock.storage.store import LogStore

log = get_logger("broker")

Place = tuple[bytes, int]


def find_strays(on_disk: Iterable[TopicOnDisk], here: Mapping[bytes, Iterable[int]]) -> dict[Place, list[LogKey]]:
    """The logs of each partition that is not here by right. `here`: of every topic that is known and placed, which
    partitions this node has a replica of. Pure."""
    owners = {topic_id: topic_id for topic_id in here}
    owners |= {companion_id(topic_id, kind): topic_id for topic_id in here for kind in CompanionKind}
    strays: dict[Place, list[LogKey]] = {}
    for found in on_disk:
        owner = owners.get(found.topic_id)
        if owner is not None:
            for index in sorted(set(found.partitions).difference(here[owner])):
                strays.setdefault((owner, index), []).append((found.topic_id, index))
    return strays


def logs_of(place: Place) -> list[LogKey]:
    topic_id, index = place
    return [place, *((companion_id(topic_id, kind), index) for kind in CompanionKind)]


class Strays:
    def __init__(self, store: LogStore, tasks: TaskSupervisor) -> None:
        self._store = store
        self._tasks = tasks
        self._leaving: set[Place] = set()

    def is_leaving(self, place: Place) -> bool:
        """Its log is being set aside: it must not be opened."""
        return place in self._leaving

    def let_go(self, strays: Mapping[Place, list[LogKey]], then: Callable[[Place], None]) -> None:
        """Nobody works on these logs any more. `then`, for each that may be opened again."""
        self._leaving.update(strays)
        self._tasks.start("strays set aside", self._set_aside(strays, then))

    async def _set_aside(self, strays: Mapping[Place, list[LogKey]], then: Callable[[Place], None]) -> None:
        try:
            await self._store.set_strays(key for keys in strays.values() for key in keys)
        except (OSError, StorageError) as error:
            # They stay where they are, and stay marked: opened again, they would be taken for new ones.
            log.error("strays not set aside before the next start", partitions=len(strays), error=str(error))
            return
        self._leaving.difference_update(strays)
        log.warning("logs that nobody assigned to this node set aside, kept for a day", partitions=len(strays))
        for place in strays:
            then(place)
