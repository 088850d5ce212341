"""Where a Produce goes, if it goes to one partition alone: what a connection remembers to learn a route by."""

from __future__ import annotations

from penstock.codec.kafka.messages.produce import ProduceRequest, ProduceResponse
from penstock.gateways.kafka.connection import Destination
from penstock.gateways.kafka.context import HandlerResult, PendingReply


def only_destination(request: ProduceRequest) -> Destination | None:
    if len(request.topic_data) != 1 or len(request.topic_data[0].partition_data) != 1:
        return None
    (data,) = request.topic_data
    return data.name, data.topic_id, data.partition_data[0].index


def is_taken(result: HandlerResult) -> bool:
    """What a request was refused for may not show in its head, so a refused one teaches no route."""
    return isinstance(result, PendingReply) or (
        isinstance(result, ProduceResponse)
        and not any(answer.error_code for topic in result.responses for answer in topic.partition_responses)
    )
