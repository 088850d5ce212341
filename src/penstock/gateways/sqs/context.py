"""What an SQS request brings beside its fields, and how a refusal leaves."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import msgspec

from penstock.broker.queue.delivery import Receiver
from penstock.broker.queue.node import QueueUnavailable
from penstock.broker.topic.not_here import NotHere
from penstock.codec.sqs.errors import SqsError
from penstock.gateways.caller import Caller

ACCOUNT_DEFAULT: Final = "000000000000"
REGION_DEFAULT: Final = "us-east-1"
# Authorization: AWS4-HMAC-SHA256 Credential=KEY/20261115/REGION/sqs/aws4_request, …
_SCOPE: Final = re.compile(r"Credential=[^/]*/\d{8}/([a-z0-9-]+)/sqs/")


class SqsRefusal(Exception):  # noqa: N818  a refusal is an answer, not a fault
    """Ends a request with an error that AWS clients know."""

    def __init__(self, error: SqsError, message: str) -> None:
        super().__init__(message)
        self.error = error


class SqsContext(msgspec.Struct, frozen=True):
    caller: Caller
    # As the client reaches us: queue URLs begin with it.
    base_url: str
    region: str = REGION_DEFAULT
    account: str = ACCOUNT_DEFAULT
    # For what takes long: whether whoever asked is still there.
    attend: Callable[[], AbstractContextManager[Receiver]] = lambda: nullcontext(Receiver())

    def queue_url(self, queue: str) -> str:
        return f"{self.base_url}/{self.account}/{queue}"

    def queue_arn(self, queue: str) -> str:
        return f"arn:aws:sqs:{self.region}:{self.account}:{queue}"


def region_of(authorization: str) -> str:
    found = _SCOPE.search(authorization)
    return REGION_DEFAULT if found is None else found[1]


def queue_of_url(url: str) -> str:
    """The last part of the path, whatever host or account is before it: clients keep URLs over moves of a server."""
    queue = url.rstrip("/").rpartition("/")[2]
    if not queue:
        raise SqsRefusal(SqsError.INVALID_ADDRESS, f"The address {url[:200]} is not valid for this endpoint.")
    return queue


def no_such_queue(queue: str) -> SqsRefusal:
    return SqsRefusal(SqsError.QUEUE_DOES_NOT_EXIST, f"The specified queue does not exist: {queue[:100]}.")


def queue_unavailable(unavailable: QueueUnavailable) -> SqsRefusal:
    error = SqsError.DAMAGED if unavailable.is_damaged else SqsError.SERVICE_UNAVAILABLE
    return SqsRefusal(error, unavailable.reason)


def not_here(found: NotHere) -> SqsRefusal:
    return SqsRefusal(SqsError.QUEUE_DOES_NOT_EXIST if found.is_unknown else SqsError.SERVICE_UNAVAILABLE, found.detail)


def invalid(message: str) -> SqsRefusal:
    return SqsRefusal(SqsError.INVALID_PARAMETER_VALUE, message)
