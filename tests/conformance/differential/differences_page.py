"""docs/conformance/differences.md, written from accepted.toml: what a user of Kafka may notice, and why it is so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from conformance.differential.comparison import Accepted, load_accepted
from conformance.differential.reference_broker import KAFKA_VERSION

PAGE: Final = Path(__file__).parents[3] / "docs" / "conformance" / "differences.md"
_HEAD: Final = f"""# Where Penstock answers otherwise than Apache Kafka

`make conformance` holds the same dialogues with Apache Kafka {KAFKA_VERSION} and with a Penstock node, in every version
that both serve, and compares the answers field by field (`tests/conformance/differential/`). Ids that a broker draws,
addresses, directories and the present time get symbolic names first; texts for people are compared by being there or
not; tables are compared whatever their order. The differences below are known and meant; any other fails the test, and
so does one that is listed and no longer shows. Under each reason stand the dialogue, its step and the field; `*` is
anything. This page is written from `tests/conformance/differential/accepted.toml`.
"""


# What no dialogue can show, because it is not in an answer.
_TAIL: Final = """
## Compression by the broker

- `compression.type` holds for the batches of Kafka's producers, for released and for dead messages, at the level of
  the topic. What comes by HTTP or SQS is compressed at the codec's default level, and a single message of more than
  128 KiB that comes so is stored as it came. Internal topics stay as they are. If `compression.type` or its level
  changes between a transactional producer's batch and the retry of it, the producer is told that its sequence is used
  up, and aborts.

## Files of retired segments

- `file.delete.delay.ms` holds for retention, DeleteRecords and a topic's deletion. What compaction replaces goes at
  once: the new file takes the old one's name. Files that wait for their time go at the next start, and as soon as the
  disk has less than four times the room without which writes stop (`[storage] free_bytes_min`).

## Records of the coordinators

- The records of `__consumer_offsets` and `__transaction_state` have a form of their own. Kafka's formatters
  (`kafka-console-consumer --formatter …OffsetsMessageFormatter`) pass over all of them and print nothing, and a lag
  monitor that reads the topic instead of asking (Burrow, kminion with `scrapeMode: offsetsTopic`) finds no group. The
  reason: offsets of an open transaction, members of share groups and generations that were told and are not kept yet
  are plain keyed records here, for which Kafka's schemas have no place, so that one rule of compaction, one snapshot
  and one replay serve them all (decisions 0006 and 0007). Everything in them is answered:
  `kafka-consumer-groups --describe --all-groups`, `kafka-transactions list`, OffsetFetch and ListGroups, which most lag
  monitors ask (kafka-lag-exporter, kminion with `adminApi`); Penstock's own metrics have the lag of every group
  (`--metrics`), and `penstock trace` tells who committed what and when.
"""


def render(accepted: Sequence[Accepted]) -> str:
    parts = [_HEAD]
    for section in dict.fromkeys(entry.section for entry in accepted):
        parts.append(f"\n## {section}\n")
        entries = [entry for entry in accepted if entry.section == section]
        for reason in dict.fromkeys(entry.reason for entry in entries):
            parts.append(f"\n- {reason}\n")
            parts += [_line(entry) for entry in entries if entry.reason == reason]
    return "".join([*parts, _TAIL])


def _line(entry: Accepted) -> str:
    """Alternatives are parted by commas here: a bar would mean a column to some readers of Markdown."""
    where = [_code(entry.dialogue), *([] if entry.step == "*" else [f"“{entry.step.replace('|', '”, “')}”"])]
    where.append(_code(entry.path))
    sides = [
        f"{name} {_code(value)}"
        for name, value in (("Kafka", entry.kafka), ("Penstock", entry.penstock))
        if value != "*"
    ]
    return f"  - {'; '.join([*where, *sides])}\n"


def _code(pattern: str) -> str:
    return ", ".join(f"`{each}`" if each else "empty" for each in pattern.split("|"))


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(render(load_accepted()))
