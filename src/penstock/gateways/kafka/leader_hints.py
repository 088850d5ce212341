"""Who leads instead, and where it is found, in a reply that sends a client away (KIP-951).

A client that hears it goes to the new leader at once, without asking for the metadata of all it uses: after a failover
thousands of clients would ask for them in the same second. One place for all requests that name partitions and may be
answered NOT_LEADER_OR_FOLLOWER; older versions of them say nothing of it, and their clients ask.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterator
from functools import wraps
from typing import Any, Final

import msgspec

from penstock.base.long_work import Steps
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.not_here import NotHere
from penstock.codec.kafka import NO_UUID, ErrorCode, Response
from penstock.codec.kafka.messages import fetch, produce, share_acknowledge, share_fetch
from penstock.domain.replication.state import NO_LEADER
from penstock.gateways.kafka.cluster_view import ClusterView, LocalAddress
from penstock.gateways.kafka.context import Answered, HandlerResult, NoReply, PendingReply, RequestContext

HINTED: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


class _Shape(msgspec.Struct, frozen=True):
    """What a reply calls its parts."""

    partitions: str
    index: str
    # None: topics are named by their ids alone.
    name: str | None
    leader: type[Any]
    endpoint: type[Any]


_SHAPES: Final[dict[type[Response], _Shape]] = {
    produce.ProduceResponse: _Shape(
        "partition_responses", "index", "name", produce.LeaderIdAndEpoch, produce.NodeEndpoint
    ),
    fetch.FetchResponse: _Shape("partitions", "partition_index", "topic", fetch.LeaderIdAndEpoch, fetch.NodeEndpoint),
    share_fetch.ShareFetchResponse: _Shape(
        "partitions", "partition_index", None, share_fetch.LeaderIdAndEpoch, share_fetch.NodeEndpoint
    ),
    share_acknowledge.ShareAcknowledgeResponse: _Shape(
        "partitions", "partition_index", None, share_acknowledge.LeaderIdAndEpoch, share_acknowledge.NodeEndpoint
    ),
}


class LeaderHints:
    def __init__(self, broker: Broker, cluster: ClusterView) -> None:
        self._broker = broker
        self._cluster = cluster

    def hint(self, response: Any, local: LocalAddress) -> Any:
        """The same, with the new leaders where it sends its client away."""
        shape = _SHAPES[type(response)]
        if not any(answer.error_code in HINTED for answer in _answers(response, shape)):
            return response
        leaders: set[int] = set()
        topics = [self._hint_topic(topic, shape, leaders) for topic in response.responses]
        found = [self._cluster.endpoint(node_id, local) for node_id in sorted(leaders)]
        endpoints = [
            shape.endpoint(each.node_id, each.host, each.port, each.rack) for each in found if each is not None
        ]
        return msgspec.structs.replace(response, responses=topics, node_endpoints=endpoints)

    def _hint_topic(self, topic: Any, shape: _Shape, leaders: set[int]) -> Any:
        partitions = []
        for answer in getattr(topic, shape.partitions):
            if answer.error_code in HINTED:
                leader, epoch = self._leader(topic, getattr(answer, shape.index), shape)
                answer = msgspec.structs.replace(answer, current_leader=shape.leader(leader, epoch))
                leaders.add(leader)
            partitions.append(answer)
        return msgspec.structs.replace(topic, **{shape.partitions: partitions})

    def _leader(self, topic: Any, index: int, shape: _Shape) -> tuple[int, int]:
        by_name = shape.name is not None and topic.topic_id == NO_UUID
        name = getattr(topic, shape.name) if shape.name is not None else ""
        served = self._broker.topic(name) if by_name else self._broker.topic_by_id(topic.topic_id)
        if served is None:
            return NO_LEADER, NO_LEADER
        found = served.find(index)
        if not isinstance(found, NotHere):
            return self._cluster.node_id, found.role.epoch
        return found.leader, found.epoch


def _answers(response: Any, shape: _Shape) -> Iterator[Any]:
    return (answer for topic in response.responses for answer in getattr(topic, shape.partitions))


Handle = Callable[[Any, RequestContext], HandlerResult]


def hinted(hints: LeaderHints, handle: Handle) -> Handle:
    """The handler, with hints in whatever it answers, now or later."""

    @wraps(handle)
    def handle_hinted(request: Any, context: RequestContext) -> HandlerResult:
        result = handle(request, context)
        local = context.local_address
        if isinstance(result, Response | PendingReply | NoReply):
            return _hint_answer(hints, result, local)
        if isinstance(result, Generator):
            return _hint_steps(hints, result, local)
        assert isinstance(result, Coroutine), result
        return _hint_later(hints, result, local)

    return handle_hinted


def _hint_answer(hints: LeaderHints, answer: Answered, local: LocalAddress) -> Answered:
    if isinstance(answer, PendingReply):
        return PendingReply(answer.commitments, lambda: hints.hint(answer.finish(), local))
    if isinstance(answer, NoReply):
        return answer
    hinted: Response = hints.hint(answer, local)
    return hinted


def _hint_steps(hints: LeaderHints, steps: Steps[Response], local: LocalAddress) -> Steps[Response]:
    response: Response = hints.hint((yield from steps), local)
    return response


async def _hint_later(hints: LeaderHints, work: Coroutine[object, object, Answered], local: LocalAddress) -> Answered:
    return _hint_answer(hints, await work, local)
