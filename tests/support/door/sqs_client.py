"""boto3, pointed at a node."""

from __future__ import annotations

from typing import Any

import boto3
from botocore.config import Config

from support.node_process import NodeProcess


def sqs_client(node: NodeProcess) -> Any:
    return sqs_client_at(node.http)


def sqs_client_at(address: str, *, attempts_max: int = 2) -> Any:
    return boto3.client(
        "sqs",
        endpoint_url=f"http://{address}",
        region_name="eu-central-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        config=Config(retries={"max_attempts": attempts_max}, read_timeout=30),
    )
