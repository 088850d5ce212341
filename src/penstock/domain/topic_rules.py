"""What a topic may be called, and how many partitions it may have. Kafka's rules, so that its tools agree.

Each check returns a whole sentence for the person who asked, or None.
"""

from __future__ import annotations

import re
from typing import Final

NAME_CHARACTERS_MAX: Final = 249
# 100,000: a Metadata answer for such a topic is some 4 MB, and librdkafka refuses frames above 100 MB; a node
# carries 10,000 well. It is there to catch a slipped finger, not to plan capacity.
PARTITIONS_MAX: Final = 100_000

# Kafka gives these ids a meaning of its own: "no topic" and its metadata log.
NO_TOPIC_ID: Final = bytes(16)
RESERVED_TOPIC_IDS: Final = frozenset({NO_TOPIC_ID, bytes(15) + b"\x01"})

CONSUMER_OFFSETS: Final = "__consumer_offsets"
TRANSACTION_STATE: Final = "__transaction_state"
COORDINATOR_TOPICS: Final = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE})
# Where Spark's tasks put rows until their query commits them. Clients write it; offsets committed for it are fences.
SPARK_STAGE: Final = "__spark_stage"

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def check_name(name: str) -> str | None:
    if not name:
        return "a topic's name cannot be empty"
    if name in (".", ".."):
        return f"a topic cannot be called {name!r}"
    if len(name) > NAME_CHARACTERS_MAX:
        return f"the topic name {name[:40]!r}... has {len(name)} characters, more than {NAME_CHARACTERS_MAX}"
    if not _LEGAL_NAME.fullmatch(name):
        return f"the topic name {name!r} is illegal: only ASCII letters, digits, '.', '_' and '-' are allowed"
    return None


def is_internal(name: str) -> bool:
    """Ours, not the users': hidden from listings that ask for it and never made by auto-creation."""
    return name.startswith("__")


def check_partition_count(count: int) -> str | None:
    if count < 1:
        return f"a topic needs at least 1 partition, not {count}"
    if count > PARTITIONS_MAX:
        return f"a topic has at most {PARTITIONS_MAX} partitions, not {count}"
    return None


def check_partition_growth(current: int, wanted: int) -> str | None:
    if wanted == current:
        return f"the topic already has {current} partitions"
    if wanted < current:
        return f"the topic has {current} partitions, which cannot be reduced to {wanted}"
    return check_partition_count(wanted)
