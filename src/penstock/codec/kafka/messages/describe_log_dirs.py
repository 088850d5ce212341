"""DescribeLogDirs: what lies in a broker's data directories, and how large it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import Bool, Int16, Int32, Int64, Message, Request, Response, String, Versions


class DescribableLogDirTopic(Message, frozen=True):
    topic: String = ""
    partitions: Sequence[Int32] = ()


class DescribeLogDirsRequest(Request, frozen=True):
    api_key = 35
    valid_versions = "1-5"
    flexible_versions = "2+"

    topics: Sequence[DescribableLogDirTopic] | None = ()


class DescribeLogDirsPartition(Message, frozen=True):
    partition_index: Int32 = 0
    partition_size: Int64 = 0
    offset_lag: Int64 = 0
    is_future_key: Bool = False


class DescribeLogDirsTopic(Message, frozen=True):
    name: String = ""
    partitions: Sequence[DescribeLogDirsPartition] = ()


class DescribeLogDirsResult(Message, frozen=True):
    error_code: Int16 = 0
    log_dir: String = ""
    topics: Sequence[DescribeLogDirsTopic] = ()
    total_bytes: Annotated[Int64, Versions("4+")] = -1
    usable_bytes: Annotated[Int64, Versions("4+")] = -1
    is_cordoned: Annotated[Bool, Versions("5+")] = False


class DescribeLogDirsResponse(Response, frozen=True):
    api_key = 35
    valid_versions = "1-5"
    flexible_versions = "2+"

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Versions("3+")] = 0
    results: Sequence[DescribeLogDirsResult] = ()
