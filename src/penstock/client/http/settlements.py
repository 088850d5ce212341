"""When messages of a queue were finished, asked for page by page."""

from __future__ import annotations

from typing import Final

from penstock.client.http.client import HttpClient, path_of
from penstock.client.http.queues import numbers_of
from penstock.domain.queue.settlements import Settled, SettlementPage

# A node tells about 64 MiB of a journal in pages of one.
PAGES_MAX: Final = 200


def settlements_of(client: HttpClient, topic: str, group: str) -> dict[int, list[tuple[int, int, int]]]:
    """By partition, in the order in which they happened."""
    found: dict[int, list[tuple[int, int, int]]] = {}
    for partition in numbers_of(client, topic, group).partitions:
        settled: list[Settled] = []
        after: int | None = None
        for _ in range(PAGES_MAX):
            query = {"partition": partition.partition, "after": after}
            page = client.get(path_of("queues", topic, group, "settlements"), SettlementPage, query)
            settled += page.settled
            if page.next is None:
                break
            after = page.next
        found[partition.partition] = [(each.first, each.last, each.at_ms) for each in settled]
    return found
