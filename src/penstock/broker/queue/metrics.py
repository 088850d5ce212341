"""What the queues of a node tell Prometheus, read when the page is asked for. By queue, over all its partitions."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.broker.queue.node import NodeQueues
from penstock.broker.queue.shell import QueueShell
from penstock.domain.queue.definition import QueueDefinition

_LABELS = ("topic", "group")


class QueueCollector(Collector):
    def __init__(self, queues: NodeQueues) -> None:
        self._queues = queues

    def describe(self) -> list[Metric]:
        return []  # nothing is collected at registration: nothing has started yet

    def collect(self) -> Iterator[Metric]:
        depth = _gauge("penstock_queue_depth", "Messages that nobody has been given yet.")
        in_flight = _gauge("penstock_queue_in_flight", "Messages that are with consumers.")
        waiting = _gauge("penstock_queue_waiting", "Messages that wait for another delivery, or for one of their key.")
        dying = _gauge("penstock_queue_dying", "Messages on their way to the dead letters.")
        oldest = _gauge("penstock_queue_oldest_seconds", "Age of the oldest message that is not finished.")
        buried = CounterMetricFamily(
            "penstock_queue_dead_letters", "Messages that became dead letters since the start.", labels=_LABELS
        )
        by_topic: dict[bytes, list[QueueShell]] = {}
        for shell in self._queues.loaded_shells():
            by_topic.setdefault(shell.partition.log.home.topic_id, []).append(shell)
        for definition in self._queues.all():
            labels = [definition.name.topic, definition.name.group]
            counts = _Counts(self._queues, definition, by_topic.get(definition.topic_id, []))
            depth.add_metric(labels, counts.depth)
            in_flight.add_metric(labels, counts.in_flight)
            waiting.add_metric(labels, counts.waiting)
            dying.add_metric(labels, counts.dying)
            oldest.add_metric(labels, counts.oldest_ms / 1000)
            buried.add_metric(labels, self._queues.buried_count(definition.name))
        yield from (depth, in_flight, waiting, dying, oldest, buried)


class _Counts:
    """Of one queue, all partitions together."""

    def __init__(self, queues: NodeQueues, definition: QueueDefinition, shells: list[QueueShell]) -> None:
        self.depth = self.in_flight = self.waiting = self.dying = self.oldest_ms = 0
        for shell in shells:
            queue = shell.queue(definition.name.group)
            if queue is None or not shell.is_loaded:
                continue
            stats = queue.stats()
            # Holes count: nobody has looked there yet.
            self.depth += max(0, shell.partition.readable_end - max(queue.cursor(), shell.partition.log_start))
            self.in_flight += stats.leased_count
            self.waiting += stats.waiting_count + stats.blocked_count
            self.dying += stats.dying_count
            self.oldest_ms = max(self.oldest_ms, queues.ages.age_ms(shell, definition.name.group))


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=_LABELS)
