"""`GET /v1/cluster/verify…`: replicas compared. The node that is asked asks the others by their internal doors."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.broker.replication.verify import LogCompared, ReplicaVerifier
from penstock.codec.http.cluster import (
    LogComparison,
    PartitionComparison,
    RangeDifference,
    VerifiableTopic,
    VerifiableTopics,
)
from penstock.codec.http.fields import NUMBER_MAX
from penstock.domain.replication.progress import GroupLog
from penstock.domain.security.access import CLUSTER, Operation
from penstock.gateways.http.door import HttpDoor, caller_of, endpoint, json_response, number_of
from penstock.gateways.http.problem import bad_request, not_found

LOGS: Final = {log.name.lower(): log for log in GroupLog}


class ClusterRoutes:
    def __init__(self, door: HttpDoor, verifier: ReplicaVerifier) -> None:
        self._door = door
        self._verifier = verifier

    def routes(self) -> list[Route]:
        return [
            Route("/v1/cluster/verify", endpoint(self._list), methods=["GET"]),
            Route("/v1/cluster/verify/{topic}/{partition}", endpoint(self._compare), methods=["GET"]),
        ]

    async def _list(self, request: Request) -> Response:
        self._door.allow(caller_of(request), Operation.DESCRIBE, CLUSTER)
        topics = self._door.broker.topics()
        return json_response(VerifiableTopics([VerifiableTopic(each.name, each.partition_count) for each in topics]))

    async def _compare(self, request: Request) -> Response:
        self._door.allow(caller_of(request), Operation.DESCRIBE, CLUSTER)
        name = request.path_params["topic"]
        index = number_of(request.path_params["partition"], "partition", highest=NUMBER_MAX)
        topic = self._door.broker.topic(name)
        if topic is None or not topic.has_partition(index):
            raise not_found(f"there is no partition {index} of a topic {name!r}")
        log = request.query_params.get("log")
        if log is not None and log not in LOGS:
            raise bad_request(f"log is {log[:40]!r}; there are {', '.join(LOGS)}")
        wanted = tuple(GroupLog) if log is None else (LOGS[log],)
        from_offset = number_of(request.query_params.get("from", "0"), "from", highest=NUMBER_MAX)
        compared = await self._verifier.compare(topic.topic_id, index, wanted, from_offset=from_offset)
        return json_response(PartitionComparison(name, index, [_told(each) for each in compared]))


def _told(compared: LogCompared) -> LogComparison:
    return LogComparison(
        log=compared.log.name.lower(),
        from_offset=compared.from_offset,
        to_offset=compared.to_offset,
        next_offset=compared.next_offset,
        is_compacted=compared.is_compacted,
        nodes=compared.nodes,
        differences=[
            RangeDifference(
                each.from_offset, each.to_offset, {str(node): checksum for node, checksum in each.checksums.items()}
            )
            for each in compared.differences
        ],
        missing={str(node): why for node, why in compared.missing.items()},
    )
