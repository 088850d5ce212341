"""Everything below the doors, put together once by the node and handed to each door as a whole."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass

from penstock.base.clock import Clock
from penstock.base.tasks import TaskSupervisor
from penstock.broker.broker import Broker
from penstock.broker.delayed_batches import DelayedBatches
from penstock.broker.group_coordinator import GroupCoordinator
from penstock.broker.marker_writer import MarkerWriter
from penstock.broker.node_queues import NodeQueues
from penstock.broker.node_schedules import NodeSchedules
from penstock.broker.publisher import Publisher
from penstock.broker.queue_delivery import QueueDelivery
from penstock.broker.queue_redrive import Redrives
from penstock.broker.share_groups import ShareGroups
from penstock.broker.trace_node import NodeTrace
from penstock.broker.transaction_coordinators import TransactionCoordinators
from penstock.cluster.access_catalog import AccessCatalog
from penstock.cluster.producer_ids import ProducerIds
from penstock.cluster.topic_catalog import TopicCatalog
from penstock.domain.access import Authorizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    clock: Clock
    tasks: TaskSupervisor
    readers: Executor
    broker: Broker
    topics: TopicCatalog
    producer_ids: ProducerIds
    publisher: Publisher
    groups: GroupCoordinator
    transactions: TransactionCoordinators
    markers: MarkerWriter
    schedules: NodeSchedules
    delays: DelayedBatches
    queues: NodeQueues
    delivery: QueueDelivery
    redrives: Redrives
    shares: ShareGroups
    trace: NodeTrace
    access: AccessCatalog
    authorizer: Authorizer
