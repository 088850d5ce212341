"""What recovery cuts from the end of a log is kept in a file beside it. Blocking.

    <base offset of the segment>-<position>.cut

Nearly always that is half a batch which nobody was promised. But a batch that rotted as the last one looks the same,
and then these bytes are all there is of it.
"""

from __future__ import annotations

from typing import Final

from penstock.storage.files.protocols import File, Files
from penstock.storage.files.small import write_fully

CUT_SUFFIX: Final = ".cut"
# Of one log: those of the last crashes. Older ones were there for somebody to look at for long enough.
FILES_MAX: Final = 8
# Of one file: more than is ever unsynced. What lies behind is gone, and the log event says how much.
BYTES_MAX: Final = 64 << 20
_COPY_BYTES: Final = 1 << 20


def keep_cut(files: Files, directory: str, source: File, *, base_offset: int, start: int, end: int) -> str | None:
    """The name of the file, which is durable when its directory was synced; None: there is nothing but zeros."""
    name = f"{base_offset:020}-{start}{CUT_SUFFIX}"
    end = min(end, start + BYTES_MAX)
    if not _holds_anything(source, start, end):
        return None
    files.remove(f"{directory}/{name}")
    target = files.open(f"{directory}/{name}", create=True)
    position = 0
    for place in range(start, end, _COPY_BYTES):
        data = source.read_at(place, min(_COPY_BYTES, end - place))
        write_fully(target, data, position)
        position += len(data)
    target.sync()
    forget_old(files, directory)
    return name


def forget_old(files: Files, directory: str) -> None:
    for name in kept_files(files, directory)[:-FILES_MAX]:
        files.remove(f"{directory}/{name}")


def kept_files(files: Files, directory: str) -> list[str]:
    """Oldest first: offsets and positions grow."""
    names = [name for name in files.list_directory(directory) if name.endswith(CUT_SUFFIX)]
    return sorted(names, key=_place)


def _place(name: str) -> tuple[int, int, str]:
    base_offset, _, position = name.removesuffix(CUT_SUFFIX).partition("-")
    is_ours = base_offset.isdecimal() and position.isdecimal()
    return (int(base_offset), int(position), name) if is_ours else (-1, -1, name)


def _holds_anything(source: File, start: int, end: int) -> bool:
    return any(
        source.read_at(place, min(_COPY_BYTES, end - place)).strip(b"\0") for place in range(start, end, _COPY_BYTES)
    )
