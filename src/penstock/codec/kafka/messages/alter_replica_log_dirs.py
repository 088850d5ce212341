"""AlterReplicaLogDirs: in which directory of a node replicas shall lie."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.kafka.schema import Int16, Int32, Message, Request, Response, String


class AlterReplicaLogDirTopic(Message, frozen=True):
    name: String = ""
    partitions: Sequence[Int32] = ()


class AlterReplicaLogDir(Message, frozen=True):
    path: String = ""
    topics: Sequence[AlterReplicaLogDirTopic] = ()


class AlterReplicaLogDirsRequest(Request, frozen=True):
    api_key = 34
    valid_versions = "1-2"
    flexible_versions = "2+"

    dirs: Sequence[AlterReplicaLogDir] = ()


class AlterReplicaLogDirPartitionResult(Message, frozen=True):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class AlterReplicaLogDirTopicResult(Message, frozen=True):
    topic_name: String = ""
    partitions: Sequence[AlterReplicaLogDirPartitionResult] = ()


class AlterReplicaLogDirsResponse(Response, frozen=True):
    api_key = 34
    valid_versions = "1-2"
    flexible_versions = "2+"

    throttle_time_ms: Int32 = 0
    results: Sequence[AlterReplicaLogDirTopicResult] = ()
