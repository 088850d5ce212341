"""A story from a seed: members come, go, are paused, are killed and come back, topics grow, the coordinator stops and
starts; then quiet comes, and everything must be as it should.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from support.group.world import ViolationError, World
from support.group.world_classic import ClassicClient
from support.group.world_clients import Client
from support.group.world_consumer import ConsumerClient

STORM_MS: Final = 45_000
# Time for the last callback that hangs, for the sessions of those who went without a word, and for rebalances.
CALM_MS: Final = 70_000
MEMBERS_MAX: Final = 5
KINDS: Final = ("consumer", "eager", "cooperative", "mixed")


class Story:
    def __init__(self, seed: int, kind: str) -> None:
        self.world = World(seed)
        self.kind = kind
        self.clients: list[Client] = []
        self._names = 0
        self._topics_grew = False
        self._random = self.world.random
        self._faults: list[tuple[int, Callable[[], None]]] = [
            (9, self._come),
            (3, self._leave),
            (4, self._pause),
            (3, self._kill),
            (4, self._restart_coordinator),
            (2, self._restart_static),
            (1, self._grow_topic),
        ]
        self.world.topics.set("t1", self._random.randint(1, 6))
        if self._random.random() < 0.6:
            self.world.topics.set("t2", self._random.randint(1, 4))

    def run(self) -> World:
        for _ in range(self._random.randint(1, 3)):
            self._come()
        while self.world.now_ms < STORM_MS:
            self.world.run_until(self.world.now_ms + self._random.randint(50, 4_000))
            self._misfortune()
            self.world.check_nobody_waits()
        self._calm_down()
        self.world.run_until(self.world.now_ms + CALM_MS)
        self.world.check_nobody_waits()
        self._check_shares()
        self.world.transactions.check_nothing_is_left()
        self.world.stop()
        self.world.start()
        return self.world

    def _misfortune(self) -> None:
        weights = [weight for weight, _fault in self._faults]
        self._random.choices([fault for _weight, fault in self._faults], weights)[0]()

    # ------------------------------------------------------------------ what happens

    def _live(self) -> list[Client]:
        return [client for client in self.clients if not client.belief.is_gone and not client.is_leaving]

    def _come(self, instance_id: str | None = None) -> None:
        if len(self._live()) >= MEMBERS_MAX:
            return
        self._names += 1
        if instance_id is None and self._random.random() < 0.35:
            instance_id = f"instance{self._names}"
        name = f"m{self._names}"
        is_transactional = self._random.random() < 0.2
        kind = self.kind
        if kind == "mixed":
            # First a classic group, then both.
            is_early = self.world.now_ms < STORM_MS // 3
            kind = "cooperative" if is_early else self._random.choice(("consumer", "cooperative"))
        if kind == "consumer":
            client: Client = ConsumerClient(
                self.world, name, instance_id=instance_id, is_transactional=is_transactional
            )
        else:
            client = ClassicClient(
                self.world,
                name,
                is_cooperative=kind == "cooperative",
                instance_id=instance_id,
                is_transactional=is_transactional,
            )
        self.clients.append(client)

    def _some(self) -> Client | None:
        live = [client for client in self._live() if not client.is_paused]
        return self._random.choice(live) if live else None

    def _leave(self) -> None:
        client = self._some()
        if client is not None:
            client.leave()

    def _pause(self) -> None:
        client = self._some()
        if client is not None:
            client.pause()
            self.world.at(self._random.choice((500, 3_000, 9_000, 14_000, 25_000)), client.resume)

    def _kill(self) -> None:
        client = self._some()
        if client is not None:
            client.kill()

    def _restart_static(self) -> None:
        """The same instance again, after its process is gone."""
        static = [client for client in self._live() if client.instance_id is not None and not client.is_paused]
        if static:
            client = self._random.choice(static)
            if self._random.random() < 0.5:
                client.kill()
            else:
                client.leave()
            self.world.at(self._random.randint(600, 6_000), lambda: self._come_again(client))

    def _come_again(self, client: Client) -> None:
        if client.belief.is_gone:
            self._come(client.instance_id)

    def _grow_topic(self) -> None:
        name = self._random.choice(self.world.topics.names())
        fact = self.world.topics.find(name)
        assert fact is not None
        self.world.topics.set(name, fact.partition_count + 1)
        self._topics_grew = True
        self._tell_of_topics()

    def _tell_of_topics(self) -> None:
        # Clients of the classic protocol look at topics themselves, and their leader joins again.
        for client in self._live():
            if isinstance(client, ClassicClient):
                client.at(self._random.randint(1, 1_000), client.topics_changed)

    def _restart_coordinator(self) -> None:
        self.world.stop()
        self.world.at(self._random.randint(10, 3_000), self.world.start)

    # ------------------------------------------------------------------ the end

    def _calm_down(self) -> None:
        self.world.loss_rate = self.world.hang_rate = 0.0
        self.world.start()
        for client in self._live():
            if client.is_paused:
                client.resume()
        while len(self._live()) < 3:
            self._come()
        if self._random.random() < 0.3:
            self._grow_topic()
        if self._topics_grew:
            # A leader that was away when a topic grew, and was given its old place back, does not know.
            self.world.at(CALM_MS // 2, self._tell_of_topics)

    def _check_shares(self) -> None:
        live = self._live()
        unsettled = [client.belief.name for client in live if not client.is_settled()]
        if unsettled:
            raise ViolationError("no share", f"{unsettled} are still busy")
        held = sorted(partition for client in live for partition in client.belief.held)
        if held != self.world.topics.partitions():
            raise ViolationError(
                "no share", f"{len(held)} partitions are held, {len(self.world.topics.partitions())} exist"
            )
        loads = [len(client.belief.held) for client in live]
        if max(loads) - min(loads) > 1:
            raise ViolationError("no share", f"loads {loads} are not even")


def run_story(seed: int, kind: str) -> World:
    return Story(seed, kind).run()
