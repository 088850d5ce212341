"""What a data directory says of itself, without its metadata: which topics have files here, and whose directory it is.

    <root>/cluster     the id of the cluster that the directory belongs to, once a node has started with it

Blocking: 10,000 topics take half a second.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.storage.files.protocols import Files
from penstock.storage.files.small import read_small_file, write_small_file
from penstock.storage.log.home import read_topic_facts
from penstock.storage.segment.facts import base_offset_of
from penstock.storage.store import LOGS_DIRECTORY, TOPIC_ID

CLUSTER_FILE: Final = "cluster"
_MAGIC: Final = b"psclust1"


class TopicOnDisk(msgspec.Struct, frozen=True):
    topic_id: bytes
    # None: nothing tells it, or not so that it can be believed.
    name: str | None
    # Those with anything in them; others are what is left of a crash before the first batch.
    partitions: tuple[int, ...]


def survey_topics(files: Files, root: str) -> list[TopicOnDisk]:
    """By id; those without a record are left out, and those that are being removed."""
    logs_directory = f"{root}/{LOGS_DIRECTORY}"
    found = [
        _look_at(files, f"{logs_directory}/{name}", name)
        for name in files.list_directory(logs_directory)
        if TOPIC_ID.fullmatch(name)
    ]
    return [topic for topic in found if topic.partitions]


def read_cluster_id(files: Files, root: str) -> str | None:
    """None: no node has started with it since there is such a file, or the file is damaged."""
    payload = read_small_file(files, root, CLUSTER_FILE, _MAGIC)
    return None if payload is None else payload.decode()


def write_cluster_id(files: Files, root: str, cluster_id: str) -> None:
    write_small_file(files, root, CLUSTER_FILE, _MAGIC, cluster_id.encode())


def _look_at(files: Files, directory: str, name: str) -> TopicOnDisk:
    facts = read_topic_facts(files, directory)
    numbers = sorted(int(entry) for entry in files.list_directory(directory) if entry.isdigit())
    return TopicOnDisk(
        bytes.fromhex(name),
        facts.name if facts is not None and facts.id == name else None,
        tuple(number for number in numbers if _has_records(files, f"{directory}/{number}")),
    )


def _has_records(files: Files, directory: str) -> bool:
    """Or had: a segment that begins past 0 follows others, whether or not anything is in it."""
    sizes = files.file_sizes(directory).items()
    return any((base_offset := base_offset_of(name)) is not None and (size or base_offset) for name, size in sizes)
