"""The work of `penstock cluster verify`: every replica of every log against the others, a stretch at a time."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from penstock.cli.failure import CommandError
from penstock.cli.http_door import http_door
from penstock.cli.output import counted, print_json, print_table, say
from penstock.cli.progress import BenchProgress
from penstock.client.http import cluster as http_cluster
from penstock.client.http.client import HttpClient
from penstock.codec.http.cluster import LogComparison, VerifiableTopic


class DifferenceFound(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    log: str
    from_offset: int
    to_offset: int
    # Nodes that say the same are together, the most of them first.
    nodes: list[list[int]]


class NotCompared(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    log: str
    node: int
    why: str


class Verified(msgspec.Struct, frozen=True):
    topics: int
    partitions: int
    # Below the watermark, over all logs.
    offsets: int
    # Logs that are compared by the last record of each key.
    compacted_logs: int
    differences: list[DifferenceFound]
    not_compared: list[NotCompared]

    @property
    def is_clean(self) -> bool:
        return not self.differences and not self.not_compared


def verify(http: str, topic: str | None, *, as_json: bool) -> None:
    with http_door(http) as client:
        found = _verify(client, topic)
    if as_json:
        print_json(found)
    else:
        _show(found)
    if not found.is_clean:
        raise CommandError(_sentence(found))


def _verify(client: HttpClient, wanted: str | None) -> Verified:
    topics = [each for each in http_cluster.verifiable(client).topics if wanted in (None, each.topic)]
    if wanted is not None and not topics:
        raise CommandError(f"there is no topic {wanted!r}")
    tally = _Tally()
    total = sum(each.partitions for each in topics)
    with BenchProgress("comparing replicas", total) as progress:
        for number, (topic, partition) in enumerate(_partitions(topics)):
            progress.update(number, f"{topic}-{partition}")
            _compare(client, topic, partition, tally)
    return Verified(len(topics), total, tally.offsets, tally.compacted, tally.differences, tally.not_compared)


class _Tally:
    def __init__(self) -> None:
        self.offsets = 0
        self.compacted = 0
        self.differences: list[DifferenceFound] = []
        self.not_compared: list[NotCompared] = []

    def add(self, topic: str, partition: int, found: LogComparison) -> None:
        self.offsets += found.to_offset - found.from_offset
        self.compacted += found.is_compacted and found.to_offset > found.from_offset
        for each in found.differences:
            place = (topic, partition, found.log, each.from_offset, each.to_offset)
            self.differences.append(DifferenceFound(*place, _camps(each.checksums)))
        for node, why in found.missing.items():
            told = NotCompared(topic, partition, found.log, int(node), why)
            if told not in self.not_compared[-len(found.missing) :]:
                self.not_compared.append(told)


def _partitions(topics: list[VerifiableTopic]) -> Iterator[tuple[str, int]]:
    for topic in topics:
        for partition in range(topic.partitions):
            yield topic.topic, partition


def _compare(client: HttpClient, topic: str, partition: int, tally: _Tally) -> None:
    for first in http_cluster.compare(client, topic, partition).logs:
        found = first
        tally.add(topic, partition, found)
        while found.next_offset is not None:
            answer = http_cluster.compare(client, topic, partition, log=found.log, from_offset=found.next_offset)
            (found,) = answer.logs
            tally.add(topic, partition, found)


def _camps(checksums: dict[str, int]) -> list[list[int]]:
    camps: dict[int, list[int]] = {}
    for node, checksum in checksums.items():
        camps.setdefault(checksum, []).append(int(node))
    return sorted((sorted(camp) for camp in camps.values()), key=lambda camp: (-len(camp), camp))


def _show(found: Verified) -> None:
    if found.differences:
        columns = ("topic", "partition", "log", "offsets", "nodes that say the same")
        print_table(columns, [_cells(each) for each in found.differences])
    if found.not_compared:
        rows = [(each.topic, each.partition, each.log, each.node, each.why) for each in found.not_compared]
        print_table(("topic", "partition", "log", "node", "not compared"), rows)
    if found.compacted_logs:
        say(f"{counted(found.compacted_logs, 'compacted log')}: compared by the last record of each key")
    if found.is_clean:
        say(_sentence(found))


def _cells(each: DifferenceFound) -> tuple[object, ...]:
    camps = " | ".join(" ".join(map(str, camp)) for camp in each.nodes)
    return each.topic, each.partition, each.log, f"{each.from_offset} to {each.to_offset - 1}", camps


def _sentence(found: Verified) -> str:
    of_all = f"{counted(found.partitions, 'partition')}, {counted(found.offsets, 'offset')} below the watermarks"
    if found.is_clean:
        return f"{of_all}: all replicas are the same"
    words: list[str] = []
    if found.differences:
        words.append(f"{counted(len(found.differences), 'range')} of offsets not the same everywhere")
    if found.not_compared:
        words.append(f"{counted(len(found.not_compared), 'replica')} not compared")
    return f"{of_all}: {', '.join(words)}"
