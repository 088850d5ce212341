"""Replicas compared, over the HTTP door."""

from __future__ import annotations

from penstock.client.http.client import HttpClient, path_of
from penstock.codec.http.cluster import PartitionComparison, VerifiableTopics


def verifiable(client: HttpClient) -> VerifiableTopics:
    return client.get(path_of("cluster", "verify"), VerifiableTopics)


def compare(
    client: HttpClient, topic: str, partition: int, *, log: str | None = None, from_offset: int = 0
) -> PartitionComparison:
    query = {"log": log, "from": from_offset or None}
    return client.get(path_of("cluster", "verify", topic, str(partition)), PartitionComparison, query)
