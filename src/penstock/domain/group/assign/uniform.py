"""Uniform: every member gets as many partitions as every other, and as few as possible change hands.

1. Each member keeps what it has, as far as it is still subscribed and the partition exists.
2. What nobody has goes to the member with the fewest, among those subscribed to its topic.
3. While a member has two more than another who could take one of its partitions, it gives one.

If all subscribe to the same topics, the loads differ by at most one in the end and no assignment that even moves
fewer partitions. If they do not, no single move can improve the balance; a chain of moves through a third member
could, and is not looked for.

Members with the same subscription form a class with one heap of loads, so a choice costs as much as there are classes,
not as there are members.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from penstock.domain.group.assign.values import MemberFacts
from penstock.domain.group.values import Assignment, Partition


def assign_uniform(members: Mapping[str, MemberFacts], partition_counts: Mapping[bytes, int]) -> dict[str, Assignment]:
    balance = _Balance(members)
    free = balance.keep_previous(partition_counts)
    for partition in free:
        receiver = balance.lightest(partition[0])
        if receiver is not None:
            balance.give(receiver, partition)
    balance.even_out()
    return {member_id: tuple(sorted(held)) for member_id, held in balance.held.items()}


class _Balance:
    """Who holds what, and who holds least of those who may hold a topic."""

    def __init__(self, members: Mapping[str, MemberFacts]) -> None:
        self._members = {member_id: members[member_id] for member_id in sorted(members)}
        self.held: dict[str, list[Partition]] = {member_id: [] for member_id in self._members}
        self._class_of = {member_id: member.topics for member_id, member in self._members.items()}
        # Entries are (load, member id) and may be out of date: one that is not the member's load is dropped when met.
        self._heaps: dict[tuple[bytes, ...], list[tuple[int, str]]] = {}
        self._classes_of_topic: dict[bytes, list[tuple[bytes, ...]]] = {}

    def keep_previous(self, partition_counts: Mapping[bytes, int]) -> list[Partition]:
        """Returns what nobody holds, topics with the fewest classes of readers first: they have the least choice."""
        taken: set[Partition] = set()
        for member_id, member in self._members.items():
            for partition in member.previous:
                topic_id, number = partition
                if topic_id in member.topics and number < partition_counts[topic_id] and partition not in taken:
                    taken.add(partition)
                    self.held[member_id].append(partition)
        for member_id, member in self._members.items():
            self._heaps.setdefault(member.topics, []).append((len(self.held[member_id]), member_id))
        for topics, heap in self._heaps.items():
            heapify(heap)
            for topic_id in topics:
                self._classes_of_topic.setdefault(topic_id, []).append(topics)
        by_choice = sorted(
            self._classes_of_topic, key=lambda topic_id: (len(self._classes_of_topic[topic_id]), topic_id)
        )
        return [
            (topic_id, number)
            for topic_id in by_choice
            for number in range(partition_counts[topic_id])
            if (topic_id, number) not in taken
        ]

    def lightest(self, topic_id: bytes) -> str | None:
        best: tuple[int, str] | None = None
        for topics in self._classes_of_topic.get(topic_id, ()):
            heap = self._heaps[topics]
            while heap and heap[0][0] != len(self.held[heap[0][1]]):
                heappop(heap)
            if heap and (best is None or heap[0] < best):
                best = heap[0]
        return None if best is None else best[1]

    def give(self, receiver: str, partition: Partition) -> None:
        self.held[receiver].append(partition)
        self._note(receiver)

    def even_out(self) -> None:
        """Always the fullest gives, or one would give what another has too much of. Every move makes the sum of the
        squared loads smaller, so this ends.
        """
        while self._one_round():
            pass

    def _one_round(self) -> bool:
        moved = False
        # Loads below this there are none, nor will there be: who gives has more left than who takes had.
        emptiest = min(map(len, self.held.values()), default=0)
        fullest = [(-len(held), member_id) for member_id, held in self.held.items()]
        heapify(fullest)
        while fullest:
            load, giver = heappop(fullest)
            if -load < emptiest + 2:
                break
            if -load != len(self.held[giver]):
                continue
            receiver = self._give_one_away(giver)
            if receiver is not None:
                moved = True
                heappush(fullest, (-len(self.held[giver]), giver))
                heappush(fullest, (-len(self.held[receiver]), receiver))
        return moved

    def _give_one_away(self, giver: str) -> str | None:
        held = self.held[giver]
        checked: set[bytes] = set()
        # From the end: the newest of its partitions, which it has held for the shortest time.
        for index in range(len(held) - 1, -1, -1):
            topic_id = held[index][0]
            if topic_id in checked:
                continue
            checked.add(topic_id)
            receiver = self.lightest(topic_id)
            if receiver is not None and len(self.held[receiver]) + 2 <= len(held):
                partition = held.pop(index)
                self._note(giver)
                self.give(receiver, partition)
                return receiver
        return None

    def _note(self, member_id: str) -> None:
        heappush(self._heaps[self._class_of[member_id]], (len(self.held[member_id]), member_id))
