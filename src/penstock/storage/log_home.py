"""Where a log lives: `<root>/logs/<topic id, 32 hex digits>/<partition>/`, made when its first batch comes.

Directories are named by the topic's id, so a topic created again under an old name inherits nothing; `topic.json`
tells people and tools the name.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.base.checksum import crc32c
from penstock.storage.file_protocols import File, Files
from penstock.storage.small_file import write_fully

TOPIC_FILE: Final = "topic.json"


class TopicFacts(msgspec.Struct, frozen=True):
    name: str
    id: str
    checksum: int = 0

    def sealed(self) -> TopicFacts:
        return msgspec.structs.replace(self, checksum=crc32c(f"{self.id} {self.name}".encode()))


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
        # Not by way of a temporary name: that needs a sync on the loop. A torn one is seen by its checksum and
        # written again, and nothing but people and tools reads it.
        facts = TopicFacts(self.topic, self.topic_id.hex()).sealed()
        data = msgspec.json.encode(facts) + b"\n"
        file = files.open(f"{self.topic_directory}/{TOPIC_FILE}", create=True)
        file.truncate(0)
        write_fully(file, data, 0)
        return file


def read_topic_facts(files: Files, topic_directory: str) -> TopicFacts | None:
    try:
        file = files.open(f"{topic_directory}/{TOPIC_FILE}")
        facts = msgspec.json.decode(file.read_at(0, file.size()), type=TopicFacts)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return facts if facts == facts.sealed() else None
