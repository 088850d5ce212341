"""A disk that fails: the file seam with everything that real ones do to a program.

What was written is in the cache until it was synced; a crash keeps or loses it:

    kill       the process dies, the machine lives: the cache survives
    lost       power cut: everything unsynced is gone
    ordered    power cut: a prefix of all unsynced operations survives, the next one in part (512-byte sectors)
    scattered  power cut: any of the unsynced operations survive, writes page by page (4 KiB), names in any order

Names are synced by directory, bytes by file, as POSIX says and no more. A sync that fails drops the dirty bytes of the
file: they stay in the cache, look well, and never reach the disk. The error is reported once to each open handle of the
file, and once to each handle of the whole disk; after that their syncs succeed, as on Linux.

`journal` holds every operation in its order, so that a test can prove what came before what.
"""

from __future__ import annotations

import enum
import errno
import os
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Final

from penstock.storage.files import WritableBytes

SECTOR_BYTES: Final = 512
PAGE_BYTES: Final = 4096
UNLIMITED_BYTES: Final = 1 << 40


class SimulatedCrash(BaseException):
    """The machine is gone: no `except OSError` may swallow it."""


class CrashMode(enum.Enum):
    KILL = "kill"
    LOST = "lost"
    ORDERED = "ordered"
    SCATTERED = "scattered"


class Operation:
    """Something that was done and is not on disk yet: `data` at `position`, a new size, or a change of names."""

    __slots__ = ("data", "directory", "inode", "kind", "name", "node", "number", "position", "target")

    def __init__(self, number: int, kind: str) -> None:
        self.number = number
        self.kind = kind
        self.inode: Inode | None = None
        self.directory: Directory | None = None
        self.position = 0
        self.data = b""
        self.name = ""
        self.target = ""
        self.node: Inode | Directory | None = None


class Inode:
    def __init__(self) -> None:
        self.cached = bytearray()
        self.durable = bytearray()
        self.pending: list[Operation] = []
        # Counts the losses of dirty bytes; a handle that has not seen the last one fails its next sync.
        self.loss_count = 0
        self.is_loss_reported = True

    def lose_pending(self) -> None:
        if self.pending:
            self.pending.clear()
            self.loss_count += 1
            self.is_loss_reported = False


class Directory:
    def __init__(self) -> None:
        self.durable: dict[str, Inode | Directory] = {}
        self.pending: list[Operation] = []


class FaultyFile:
    def __init__(self, files: FaultyFiles, path: str, inode: Inode) -> None:
        self._files = files
        self._inode = inode
        self._life = files.life
        # A loss that nobody was told of is told to those who open the file later.
        self._losses_seen = inode.loss_count if inode.is_loss_reported else inode.loss_count - 1
        self.path = path

    def write_at(self, data: WritableBytes, position: int) -> int:
        self._live("write")
        size = self._files.writable_size(self.path, len(data), position + len(data) - len(self._inode.cached))
        operation = self._files.operation("write")
        operation.inode, operation.position, operation.data = self._inode, position, bytes(data[:size])
        _apply_write(self._inode.cached, operation)
        self._inode.pending.append(operation)
        self._files.journal.append(("write", self.path, position, size))
        return size

    def read_at(self, position: int, size: int) -> bytes:
        self._live("read")
        return bytes(self._inode.cached[position : position + size])

    def read_cached_at(self, position: int, size: int) -> bytes | None:
        self._live("read")
        if self._files.random.random() < self._files.uncached_chance:
            return None
        data = bytes(self._inode.cached[position : position + size])
        return data if len(data) == size else None

    def truncate(self, size: int) -> None:
        self._live("truncate")
        operation = self._files.operation("truncate")
        operation.inode, operation.position = self._inode, size
        _apply_truncate(self._inode.cached, size)
        self._inode.pending.append(operation)
        self._files.journal.append(("truncate", self.path, size))

    def size(self) -> int:
        return len(self._inode.cached)

    def sync(self) -> None:
        self._files.before_sync()
        self._live("sync")
        try:
            self._files.maybe_fail("sync", self.path)
        except OSError:
            # The kernel marks the pages clean and forgets about them.
            self._files.before_loss()
            self._inode.lose_pending()
            self._files.loss_count += 1
            self._losses_seen, self._inode.is_loss_reported = self._inode.loss_count, True
            raise
        self._files.make_durable(self._inode)
        if self._losses_seen < self._inode.loss_count:
            self._losses_seen, self._inode.is_loss_reported = self._inode.loss_count, True
            raise OSError(errno.EIO, os.strerror(errno.EIO), self.path)
        self._files.journal.append(("sync", self.path))

    def begin_writeback(self, position: int, size: int) -> None:
        pass

    def drop_cache(self) -> None:
        # The size stays: what never reached the disk reads as zeros.
        content = bytearray(self._inode.durable)
        for operation in self._inode.pending:
            _apply(content, operation)
        _apply_truncate(content, len(self._inode.cached))
        self._inode.cached = content

    def close(self) -> None:
        return None

    def _live(self, kind: str) -> None:
        assert self._life == self._files.life, f"{self.path}: a handle of the process that died is used"
        self._files.step(kind, self.path)


class DurableFile(FaultyFile):
    """What is on the disk, whatever the cache says."""

    def read_at(self, position: int, size: int) -> bytes:
        self._live("read")
        return bytes(self._inode.durable[position : position + size])


class FaultyDiskSync:
    def __init__(self, files: FaultyFiles) -> None:
        self._files = files
        self._losses_seen = files.loss_count

    def sync(self) -> None:
        files = self._files
        files.step("sync_all", "")
        try:
            files.maybe_fail("sync_all", "")
        except OSError:
            files.before_loss()
            for inode in files.inodes():
                inode.lose_pending()
            files.loss_count += 1
        if self._losses_seen < files.loss_count:
            self._losses_seen = files.loss_count
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        for inode in [inode for inode in files.inodes() if inode.pending]:
            files.before_sync()
            files.make_durable(inode)
        for directory in files.directories():
            files.make_names_durable(directory)
        files.journal.append(("sync_all",))

    def close(self) -> None:
        return None


class FaultyLock:
    def __init__(self, files: FaultyFiles, path: str) -> None:
        self._files = files
        self._path = path

    def release(self) -> None:
        self._files.locked.discard(self._path)


class FaultyFiles:
    is_durable = True
    has_writeback = False

    def __init__(self, random: Random | None = None, *, bytes_max: int = UNLIMITED_BYTES) -> None:
        self.random = random or Random(0)
        self.bytes_max = bytes_max
        self.journal: list[tuple[object, ...]] = []
        self.locked: set[str] = set()
        # Counts the processes that have lived on this disk.
        self.life = 0
        # Writeback errors anywhere: each handle of the whole disk hears of each of them once.
        self.loss_count = 0
        # For whoever keeps account of what may be gone: called while it is still known what was not synced.
        self.before_loss: Callable[[], None] = lambda: None
        # The power may go between the syncs of two files.
        self.before_sync: Callable[[], None] = lambda: None
        # How often a read finds its bytes not in the cache.
        self.uncached_chance = 0.0
        self.can_sync_all = True
        # As `is_read_only` tells it; that writes fail so is `fail_next("write", errno.EROFS)`.
        self.read_only = False
        # Operations until the machine dies; -1: never.
        self.steps_left = -1
        self._failures: list[tuple[str, int]] = []
        self._short_write: int | None = None
        self._names: dict[str, Inode | Directory] = {"": Directory()}
        self._count = 0

    # --- faults --------------------------------------------------------------------------------------------------

    def fail_next(self, kind: str, number: int) -> None:
        """The next operation of the kind (write, sync, sync_all, sync_directory, open, rename, remove) fails so."""
        self._failures.append((kind, number))

    def forget_failures(self) -> None:
        self._failures.clear()
        self._short_write = None

    def shorten_next_write(self, size: int) -> None:
        self._short_write = size

    def crash_after(self, steps: int) -> None:
        self.steps_left = steps

    def flip_bit(self, path: str, bit: int) -> None:
        """On the disk, where no cache hides it."""
        inode = self._inode(path)
        for content in (inode.cached, inode.durable):
            if bit // 8 < len(content):
                content[bit // 8] ^= 1 << (bit % 8)

    def rot(self, path: str, bit: int) -> None:
        """On the disk; the cache still has it as it was written."""
        self._inode(path).durable[bit // 8] ^= 1 << (bit % 8)

    def spoil_cache(self, path: str, bit: int) -> None:
        """In memory; the disk has it as it was written."""
        self._inode(path).cached[bit // 8] ^= 1 << (bit % 8)

    def crash(self, mode: CrashMode) -> None:
        """What the next process finds."""
        self.life += 1
        self.locked.clear()
        self.steps_left = -1
        self.forget_failures()
        if mode is CrashMode.KILL:
            return
        survivors = self._survivors(mode)
        for inode in self.inodes():
            for operation in inode.pending:
                for piece in survivors.get(operation.number, ()):
                    _apply(inode.durable, piece)
            inode.pending.clear()
            inode.cached = bytearray(inode.durable)
        for directory in self.directories():
            for operation in directory.pending:
                if operation.number in survivors:
                    _apply_name(directory.durable, operation)
            directory.pending.clear()
        root = self._names[""]
        assert isinstance(root, Directory)
        self._names = {"": root}
        self._find_names("", root)

    def image(self) -> dict[str, bytes]:
        """What is on the disk, and would be there after a power cut."""
        found: dict[str, bytes] = {}
        waiting: list[tuple[str, Inode | Directory]] = [("", self._names[""])]
        while waiting:
            path, node = waiting.pop()
            if isinstance(node, Inode):
                found[path] = bytes(node.durable)
            else:
                waiting += [(f"{path}/{name}", child) for name, child in node.durable.items()]
        return found

    def restore(self, image: Mapping[str, bytes]) -> None:
        """Another disk in its place, or the same one as it was once; no process lives on it."""
        self.life += 1
        self.locked.clear()
        self.forget_failures()
        self._names = {"": Directory()}
        for path, content in sorted(image.items()):
            self.make_root(path.rpartition("/")[0])
            inode = Inode()
            inode.cached, inode.durable = bytearray(content), bytearray(content)
            self._link(path, inode)
        for directory in self.directories():
            self.make_names_durable(directory)

    def unsynced_writes(self, path: str) -> list[tuple[int, bytes]]:
        """Position and data of each that is in the cache alone, in their order."""
        return [(each.position, each.data) for each in self._inode(path).pending if each.kind == "write"]

    def _survivors(self, mode: CrashMode) -> dict[int, list[Operation]]:
        if mode is CrashMode.LOST:
            return {}
        nodes: list[Inode | Directory] = [*self.inodes(), *self.directories()]
        pending = sorted((op for node in nodes for op in node.pending), key=lambda op: op.number)
        if mode is CrashMode.ORDERED:
            count = self.random.randint(0, len(pending))
            kept = {operation.number: [operation] for operation in pending[:count]}
            if count < len(pending) and pending[count].kind == "write":
                kept[pending[count].number] = [_torn(pending[count], self.random)]
            return kept
        return {op.number: list(_scattered(op, self.random)) for op in pending if self.random.random() < 0.6}

    # --- the seam ------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> FaultyFile:
        self.step("open", path)
        self.maybe_fail("open", path)
        node = self._names.get(path)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            node = Inode()
            self._link(path, node)
        assert isinstance(node, Inode), path
        return FaultyFile(self, path, node)

    def open_uncached(self, path: str) -> FaultyFile:
        self.open(path)
        return DurableFile(self, path, self._inode(path))

    def exists(self, path: str) -> bool:
        return path in self._names

    def list_directory(self, path: str) -> list[str]:
        prefix = f"{path}/"
        return sorted(
            name.removeprefix(prefix)
            for name in self._names
            if name.startswith(prefix) and "/" not in name.removeprefix(prefix)
        )

    def file_sizes(self, path: str) -> dict[str, int]:
        nodes = {name: self._names[f"{path}/{name}"] for name in self.list_directory(path)}
        return {name: len(node.cached) for name, node in nodes.items() if isinstance(node, Inode)}

    def make_directory(self, path: str) -> None:
        if path in self._names:
            return
        parent = path.rpartition("/")[0]
        self.make_directory(parent)
        self.step("make_directory", path)
        self._link(path, Directory())

    def make_root(self, path: str) -> None:
        self.make_directory(path)
        while path:
            path = path.rpartition("/")[0]
            self.sync_directory(path)

    def rename(self, source: str, target: str) -> None:
        self.step("rename", source)
        self.maybe_fail("rename", source)
        directory = source.rpartition("/")[0]
        assert directory == target.rpartition("/")[0], "renames stay in their directory"
        for path in [path for path in self._names if path == target or path.startswith(f"{target}/")]:
            del self._names[path]
        for path in [path for path in self._names if path == source or path.startswith(f"{source}/")]:
            self._names[target + path.removeprefix(source)] = self._names.pop(path)
        operation = self.operation("rename")
        operation.name, operation.target = source.rpartition("/")[2], target.rpartition("/")[2]
        self._directory(directory).pending.append(operation)
        self.journal.append(("rename", source, target))

    def remove(self, path: str) -> None:
        if path not in self._names:
            return
        self.step("remove", path)
        self.maybe_fail("remove", path)
        del self._names[path]
        operation = self.operation("unlink")
        directory, _, operation.name = path.rpartition("/")
        self._directory(directory).pending.append(operation)
        self.journal.append(("remove", path))

    def remove_tree(self, path: str) -> None:
        for name in self.list_directory(path):
            self.remove_tree(f"{path}/{name}")
        self.remove(path)

    def sync_directory(self, path: str) -> None:
        self.step("sync_directory", path)
        self.maybe_fail("sync_directory", path)
        self.make_names_durable(self._directory(path))
        self.journal.append(("sync_directory", path))

    def whole_disk_sync(self, _root: str) -> FaultyDiskSync | None:
        return FaultyDiskSync(self) if self.can_sync_all else None

    def is_read_only(self, _root: str) -> bool:
        return self.read_only

    def free_bytes(self, _root: str) -> int:
        return self.bytes_max - sum(len(node.cached) for node in self._names.values() if isinstance(node, Inode))

    def lock(self, path: str) -> FaultyLock | None:
        if path in self.locked:
            return None
        self.locked.add(path)
        return FaultyLock(self, path)

    # --- for the files -------------------------------------------------------------------------------------------

    def step(self, kind: str, path: str) -> None:
        if self.steps_left < 0:
            return
        if self.steps_left == 0:
            raise SimulatedCrash(f"{kind} {path}")
        self.steps_left -= 1

    def maybe_fail(self, kind: str, path: str) -> None:
        for place, (failing_kind, number) in enumerate(self._failures):
            if failing_kind == kind:
                del self._failures[place]
                self.journal.append(("failed", kind, path))
                raise OSError(number, os.strerror(number), path)

    def writable_size(self, path: str, size: int, growth: int) -> int:
        if self._short_write is not None and 0 < self._short_write < size:
            shortened, self._short_write = self._short_write, None
            return shortened
        self.maybe_fail("write", path)
        if self.bytes_max < UNLIMITED_BYTES and growth > max(0, self.free_bytes("")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return size

    def operation(self, kind: str) -> Operation:
        self._count += 1
        return Operation(self._count, kind)

    def make_durable(self, inode: Inode) -> None:
        for operation in inode.pending:
            _apply(inode.durable, operation)
        inode.pending.clear()

    def make_names_durable(self, directory: Directory) -> None:
        for operation in directory.pending:
            _apply_name(directory.durable, operation)
        directory.pending.clear()

    def paths(self) -> list[str]:
        """Of all files."""
        return [path for path, node in self._names.items() if isinstance(node, Inode)]

    def content(self, path: str) -> bytes:
        return bytes(self._inode(path).cached)

    def durable_size(self, path: str) -> int:
        return len(self._inode(path).durable)

    def holds_durably(self, data: bytes, suffix: str) -> bool:
        """Whether a file of such a name has it on the disk, whatever is in the cache."""
        # From the youngest on, and from its end: most are asked for when they have just been written.
        nodes = [node for path, node in self._names.items() if path.endswith(suffix)]
        return any(isinstance(node, Inode) and node.durable.rfind(data) >= 0 for node in reversed(nodes))

    def inodes(self) -> Iterator[Inode]:
        """Also those that have lost their name in the cache, but not yet on disk."""
        seen: set[int] = set()
        for directory in self.directories():
            linked = [op.node for op in directory.pending if isinstance(op.node, Inode)]
            for node in [*directory.durable.values(), *linked]:
                if isinstance(node, Inode) and id(node) not in seen:
                    seen.add(id(node))
                    yield node

    def directories(self) -> list[Directory]:
        found: list[Directory] = []
        waiting: list[Directory] = [node for node in self._names.values() if isinstance(node, Directory)]
        while waiting:
            directory = waiting.pop(0)
            if any(directory is known for known in found):
                continue
            found.append(directory)
            waiting.extend(node for node in directory.durable.values() if isinstance(node, Directory))
        return found

    def _link(self, path: str, node: Inode | Directory) -> None:
        operation = self.operation("link")
        directory, _, operation.name = path.rpartition("/")
        operation.node = node
        self._directory(directory).pending.append(operation)
        self._names[path] = node
        self.journal.append(("create", path))

    def _inode(self, path: str) -> Inode:
        node = self._names[path]
        assert isinstance(node, Inode), path
        return node

    def _directory(self, path: str) -> Directory:
        node = self._names.get(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        assert isinstance(node, Directory), path
        return node

    def _find_names(self, path: str, directory: Directory) -> None:
        for name, node in directory.durable.items():
            child = f"{path}/{name}"
            self._names[child] = node
            if isinstance(node, Directory):
                self._find_names(child, node)


def _apply(content: bytearray, operation: Operation) -> None:
    if operation.kind == "write":
        _apply_write(content, operation)
    else:
        _apply_truncate(content, operation.position)


def _apply_write(content: bytearray, operation: Operation) -> None:
    _apply_truncate(content, max(len(content), operation.position))
    content[operation.position : operation.position + len(operation.data)] = operation.data


def _apply_truncate(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _apply_name(entries: dict[str, Inode | Directory], operation: Operation) -> None:
    if operation.kind == "link":
        assert operation.node is not None
        entries[operation.name] = operation.node
    elif operation.kind == "unlink":
        entries.pop(operation.name, None)
    elif operation.name in entries:
        entries[operation.target] = entries.pop(operation.name)


def _piece(operation: Operation, start: int, end: int) -> Operation:
    piece = Operation(operation.number, "write")
    piece.position = operation.position + start
    piece.data = operation.data[start:end]
    return piece


def _torn(operation: Operation, random: Random) -> Operation:
    """A prefix that ends at a sector's boundary on the disk."""
    end = operation.position + random.randint(0, len(operation.data))
    end -= end % SECTOR_BYTES
    return _piece(operation, 0, max(0, end - operation.position))


def _scattered(operation: Operation, random: Random) -> Iterator[Operation]:
    if operation.kind != "write":
        yield operation
        return
    start = 0
    while start < len(operation.data):
        end = start + PAGE_BYTES - (operation.position + start) % PAGE_BYTES
        if random.random() < 0.5:
            yield _piece(operation, start, min(end, len(operation.data)))
        start = end
