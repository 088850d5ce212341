"""What nodes of a cluster say to each other beyond Kafka's protocol: in its frames, by keys that Kafka will never use.

Only the internal door serves them (`gateways/cluster`). The public one neither tells of them nor takes them.
"""

from __future__ import annotations

from typing import Final

from penstock.codec.kafka.internal.barrier import BarrierRequest, BarrierResponse
from penstock.codec.kafka.internal.describe_replica import DescribeReplicaRequest, DescribeReplicaResponse
from penstock.codec.kafka.internal.forward import ForwardRequest, ForwardResponse
from penstock.codec.kafka.internal.hello import HelloRequest, HelloResponse
from penstock.codec.kafka.schema import Request, Response

# Kafka counts from 0 and has come to 92.
INTERNAL_KEYS_FROM: Final = 20_000

INTERNAL_MESSAGES: Final[tuple[tuple[type[Request], type[Response]], ...]] = (
    (HelloRequest, HelloResponse),
    (BarrierRequest, BarrierResponse),
    (DescribeReplicaRequest, DescribeReplicaResponse),
    (ForwardRequest, ForwardResponse),
)
