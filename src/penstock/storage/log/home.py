"""Where a log lives: `<root>/logs/<topic id, 32 hex digits>/<partition>/`, made when its first batch comes.

Directories are named by the topic's id, so a topic created again under an old name inherits nothing; `topic.json`
tells the name: to people and tools, and to a start that compares it with the metadata.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.base.checksum import crc32c
from penstock.storage.files.protocols import File, Files
from penstock.storage.files.small import write_fully

TOPIC_FILE: Final = "topic.json"


class TopicFacts(msgspec.Struct, frozen=True):
    name: str
    id: str
    checksum: int = 0

    def sealed(self) -> TopicFacts:
        return msgspec.structs.replace(self, checksum=crc32c(f"{self.id} {self.name}".encode()))


# Made here, before there are threads: see base/typed_values.
_decode_facts: Final = msgspec.json.Decoder(TopicFacts).decode


class LogHome:
    __slots__ = ("directory", "logs_directory", "partition", "topic", "topic_directory", "topic_id")

    def __init__(self, logs_directory: str, topic: str, topic_id: bytes, partition: int) -> None:
        assert len(topic_id) == 16
        self.logs_directory = logs_directory
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.topic_directory = f"{logs_directory}/{topic_id.hex()}"
        self.directory = f"{self.topic_directory}/{partition}"

    def create(self, files: Files) -> File | None:
        """The file that tells the topic's name, if it had to be written: it is to be synced with the first batch."""
        files.make_directory(self.directory)
        if read_topic_facts(files, self.topic_directory) is not None:
            return None
        return write_topic_facts(files, self.topic_directory, self.topic)


def write_topic_facts(files: Files, topic_directory: str, name: str) -> File:
    """To be synced by the caller."""
    # Not by way of a temporary name: that needs a sync on the loop. A torn one is seen by its checksum and written
    # again.
    facts = TopicFacts(name, topic_directory.rpartition("/")[2]).sealed()
    file = files.open(f"{topic_directory}/{TOPIC_FILE}", create=True)
    file.truncate(0)
    write_fully(file, msgspec.json.encode(facts) + b"\n", 0)
    return file


def read_topic_facts(files: Files, topic_directory: str) -> TopicFacts | None:
    try:
        file = files.open(f"{topic_directory}/{TOPIC_FILE}")
        facts = _decode_facts(file.read_at(0, file.size()))
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return facts if facts == facts.sealed() else None
