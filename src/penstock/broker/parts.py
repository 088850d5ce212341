"""Everything below the doors, put together once by the node and handed to each door as a whole."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.broker.group.node import GroupCoordinator
from penstock.broker.publisher import Publisher
from penstock.broker.queue.delivery import QueueDelivery
from penstock.broker.queue.node import NodeQueues
from penstock.broker.queue.redrive import Redrives
from penstock.broker.replication.verify import ReplicaVerifier
from penstock.broker.schedule.delayed_batches import DelayedBatches
from penstock.broker.schedule.node import NodeSchedules
from penstock.broker.share.node import ShareGroups
from penstock.broker.site import Site
from penstock.broker.topic.broker import Broker
from penstock.broker.trace.node import NodeTrace
from penstock.broker.transaction.markers import MarkerWriter
from penstock.broker.transaction.node import TransactionCoordinators
from penstock.cluster.catalog.access import AccessCatalog
from penstock.cluster.catalog.nodes import NodeCatalog
from penstock.cluster.catalog.topics import TopicCatalog
from penstock.cluster.controller.requested import RequestedElections
from penstock.cluster.producer_ids import ProducerIds
from penstock.domain.security.access import Authorizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    site: Site
    broker: Broker
    topics: TopicCatalog
    nodes: NodeCatalog
    elections: RequestedElections
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
    verifier: ReplicaVerifier
    access: AccessCatalog
    authorizer: Authorizer
