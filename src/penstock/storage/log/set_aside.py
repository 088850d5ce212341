"""Logs that are out of use and not gone: a directory beside the one that it was, named with the time. Blocking.

<topic id>/<partition>.<milliseconds>.damaged    broken, or other than its leader's. The last two of a log are kept
<topic id>/<partition>.<milliseconds>.stray      nobody has assigned it to this node. Kept for a day
<topic id>/<partition>.<milliseconds>.dropped    begun anew on purpose. A crash came before it was removed
"""

from __future__ import annotations

import enum
import re
from typing import Final

import msgspec

from penstock.storage.files.protocols import Files
from penstock.storage.log.home import LogHome

# Of one log. A disk that goes on rotting must not be filled by what it has spoilt.
DAMAGED_KEPT_MAX: Final = 2

_NAME: Final = re.compile(r"([0-9]+)\.([0-9]+)\.(damaged|stray|dropped)")


class Aside(enum.Enum):
    DAMAGED = "damaged"
    STRAY = "stray"
    DROPPED = "dropped"


class AsideLog(msgspec.Struct, frozen=True):
    path: str
    topic_id: bytes
    partition: int
    since_ms: int
    kind: Aside


def set_aside(files: Files, home: LogHome, kind: Aside, now_ms: int) -> str | None:
    """Its new path, durable when it returns; None: there is nothing of the log. The caller has made sure that the
    node's checkpoint does not speak of it any more."""
    if not files.exists(home.directory):
        return None
    while files.exists(path := f"{home.directory}.{now_ms}.{kind.value}"):
        now_ms += 1
    files.rename(home.directory, path)
    files.sync_directory(home.topic_directory)
    return path


def remove_old_damaged(files: Files, home: LogHome) -> None:
    """Those that others have been put beside since."""
    found = list_set_aside(files, home.logs_directory, [home.topic_id.hex()])
    damaged = [log for log in found if log.partition == home.partition and log.kind is Aside.DAMAGED]
    for log in damaged[:-DAMAGED_KEPT_MAX]:
        files.remove_tree(log.path)


def list_set_aside(files: Files, logs_directory: str, topic_ids: list[str]) -> list[AsideLog]:
    """Of these topics, the oldest of each first."""
    found = []
    for topic_id in topic_ids:
        for name in files.list_directory(f"{logs_directory}/{topic_id}"):
            parts = _NAME.fullmatch(name)
            if parts is not None:
                path = f"{logs_directory}/{topic_id}/{name}"
                found.append(AsideLog(path, bytes.fromhex(topic_id), int(parts[1]), int(parts[2]), Aside(parts[3])))
    return sorted(found, key=lambda log: (log.topic_id, log.partition, log.since_ms))
