"""What a pipeline keeps on the machine that runs it, a directory for each:

    <state directory>/<name>/checkpoint               Spark's: how far it is, and its state
                            /checkpoint-dead-letters  the same of the query that writes dead letters
                            /pipeline.json            whose checkpoint it is, and columns that were found in a sample
                            /failure.log              the whole of the last error
                            /lock                     held while it runs

A checkpoint belongs to one cluster: offsets of another mean nothing. Columns that were found in a sample stay as they
were for as long as the checkpoint does: with others, the state of an aggregate could not be read any more.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from penstock.base.typed_values import read_json

DIRECTORY_VARIABLE: Final = "PENSTOCK_PIPELINES"
# What Spark puts into one.
_CHECKPOINT_ENTRIES: Final = frozenset({"metadata", ".metadata.crc", "offsets", "commits", "state", "sources"})


class StateError(Exception):
    """The pipeline cannot run here; one sentence on why."""


class Kept(msgspec.Struct, frozen=True):
    cluster_id: str | None = None
    # By source, as Spark writes them.
    columns: dict[str, str] = msgspec.field(default_factory=dict)
    # Of the topics that are read: one that is made anew has the same name, and its offsets begin again.
    topic_ids: dict[str, str] = msgspec.field(default_factory=dict)


def default_directory(environment: Mapping[str, str]) -> Path:
    """As the desktop standard has it: what a program keeps and a user would not miss in a backup."""
    given = environment.get(DIRECTORY_VARIABLE)
    if given:
        return Path(given).expanduser()
    home = environment.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(home).expanduser() / "penstock" / "pipelines"


class PipelineState:
    """Caller's duties: `lock` before anything is written, and `release` at the end."""

    def __init__(self, directory: Path, name: str, checkpoint: str | None) -> None:
        self.directory = directory / name
        self.checkpoint = checkpoint or str(self.directory / "checkpoint")
        self.dead_letter_checkpoint = (
            f"{checkpoint.rstrip('/')}-dead-letters" if checkpoint else str(self.directory / "checkpoint-dead-letters")
        )
        self.log_file = self.directory / "failure.log"
        self._name = name
        # Descriptors: the name, and the checkpoint if it is on this machine.
        self._locks: list[int] = []

    def lock(self) -> None:
        """Raises `StateError` if another process runs this pipeline here, or another one with its checkpoint."""
        self.directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        self._locks.append(descriptor)
        if not _try_lock(descriptor):
            holder = os.read(descriptor, 32).decode(errors="replace").strip()
            self.release()
            who = f" as process {holder}" if holder else ""
            raise StateError(f"pipeline {self._name!r} runs already{who} (its state is {self.directory})")
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        if not self.is_elsewhere:
            Path(self.checkpoint).mkdir(parents=True, exist_ok=True)
            self._locks.append(os.open(self.checkpoint, os.O_RDONLY | os.O_DIRECTORY))
            if not _try_lock(self._locks[-1]):
                self.release()
                raise StateError(f"the checkpoint {self.checkpoint} is in use by another pipeline than {self._name!r}")

    def release(self) -> None:
        for descriptor in self._locks:
            os.close(descriptor)
        self._locks.clear()

    @property
    def is_elsewhere(self) -> bool:
        """A URI, of which Spark alone knows what is there."""
        return "://" in self.checkpoint

    def read(self) -> Kept:
        path = self.directory / "pipeline.json"
        try:
            return read_json(path.read_bytes(), Kept)
        except FileNotFoundError:
            return Kept()
        except msgspec.DecodeError as error:
            raise StateError(f"{path}: not what was written there: {error}") from error

    def keep(self, kept: Kept) -> None:
        path = self.directory / "pipeline.json"
        temporary = path.with_suffix(".new")
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=2))
        temporary.replace(path)

    @property
    def has_checkpoint(self) -> bool:
        """Of one that lies elsewhere it is not known, and then what was kept counts as well."""
        return self.is_elsewhere or Path(self.checkpoint, "metadata").exists()

    def check_cluster(self, cluster_id: str | None) -> None:
        known = self.read().cluster_id
        if known is not None and cluster_id is not None and known != cluster_id:
            raise StateError(
                f"the checkpoint of pipeline {self._name!r} belongs to another cluster ({known}, this one is "
                f"{cluster_id}): give it another `checkpoint`, or begin anew with `penstock pipeline reset`"
            )

    def check_topics(self, topic_ids: Mapping[str, str]) -> None:
        known = self.read().topic_ids
        for topic, found in topic_ids.items():
            if known.get(topic, found) != found:
                raise StateError(
                    f"topic {topic!r} was deleted and made anew since pipeline {self._name!r} read it: its checkpoint "
                    "would pass over messages. Begin anew with `penstock pipeline reset`"
                )

    def write_failure(self, text: str) -> Path:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.log_file.write_text(text)
        return self.log_file

    def reset(self) -> list[str]:
        """Forgets how far the pipeline is; what was removed. Only what lies on this machine can be."""
        removed: list[str] = []
        checkpoints = [path for path in (Path(self.checkpoint), Path(self.dead_letter_checkpoint)) if path.is_dir()]
        for path in checkpoints:
            # A path that was given may be more than a checkpoint: somebody's directory.
            others = sorted(entry.name for entry in path.iterdir() if entry.name not in _CHECKPOINT_ENTRIES)
            if others:
                raise StateError(f"{path} holds more than a checkpoint ({others[0]}): nothing was removed")
        for path in checkpoints:
            shutil.rmtree(path)
            removed.append(str(path))
        kept = self.directory / "pipeline.json"
        if kept.exists():
            kept.unlink()
            removed.append(str(kept))
        return removed


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # A network's file system may have no locks, or none for directories; Spark tells two queries with one
        # checkpoint by itself, only later and less clearly.
        return True
    return True
