"""The errors that AWS clients know, by the names their code catches.

boto3 raises by the query protocol's code also when it speaks JSON (the header `x-amzn-query-error` carries it), so an
error has two names and they must fit together.
"""

from __future__ import annotations

import enum
from typing import Final


class SqsError(enum.Enum):
    """(shape in JSON, code of the query protocol, HTTP status)"""

    BATCH_ENTRY_IDS_NOT_DISTINCT = (
        "BatchEntryIdsNotDistinct",
        "AWS.SimpleQueueService.BatchEntryIdsNotDistinct",
        400,
    )
    BATCH_REQUEST_TOO_LONG = ("BatchRequestTooLong", "AWS.SimpleQueueService.BatchRequestTooLong", 400)
    # Ours. Clients ask again a few times, as for every fault of a server, and then raise it.
    DAMAGED = ("QueueDamaged", "QueueDamaged", 500)
    EMPTY_BATCH_REQUEST = ("EmptyBatchRequest", "AWS.SimpleQueueService.EmptyBatchRequest", 400)
    INTERNAL_FAILURE = ("InternalFailure", "InternalFailure", 500)
    INVALID_ACTION = ("InvalidAction", "InvalidAction", 400)
    INVALID_ADDRESS = ("InvalidAddress", "InvalidAddress", 404)
    INVALID_ATTRIBUTE_NAME = ("InvalidAttributeName", "InvalidAttributeName", 400)
    INVALID_ATTRIBUTE_VALUE = ("InvalidAttributeValue", "InvalidAttributeValue", 400)
    INVALID_BATCH_ENTRY_ID = ("InvalidBatchEntryId", "AWS.SimpleQueueService.InvalidBatchEntryId", 400)
    INVALID_MESSAGE_CONTENTS = ("InvalidMessageContents", "InvalidMessageContents", 400)
    INVALID_PARAMETER_VALUE = ("InvalidParameterValueException", "InvalidParameterValue", 400)
    MALFORMED_REQUEST = ("SerializationException", "MalformedQueryString", 400)
    MESSAGE_NOT_INFLIGHT = ("MessageNotInflight", "AWS.SimpleQueueService.MessageNotInflight", 400)
    MISSING_AUTHENTICATION_TOKEN = ("MissingAuthenticationToken", "MissingAuthenticationToken", 403)
    MISSING_PARAMETER = ("MissingRequiredParameterException", "MissingParameter", 400)
    OVER_LIMIT = ("OverLimit", "OverLimit", 403)
    PURGE_QUEUE_IN_PROGRESS = ("PurgeQueueInProgress", "AWS.SimpleQueueService.PurgeQueueInProgress", 403)
    QUEUE_DELETED_RECENTLY = ("QueueDeletedRecently", "AWS.SimpleQueueService.QueueDeletedRecently", 400)
    QUEUE_DOES_NOT_EXIST = ("QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", 400)
    QUEUE_NAME_EXISTS = ("QueueNameExists", "QueueAlreadyExists", 400)
    RECEIPT_HANDLE_IS_INVALID = ("ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid", 404)
    REQUEST_THROTTLED = ("RequestThrottled", "RequestThrottled", 403)
    RESOURCE_NOT_FOUND = ("ResourceNotFoundException", "ResourceNotFoundException", 404)
    ACCESS_DENIED = ("AccessDeniedException", "AccessDenied", 403)
    SERVICE_UNAVAILABLE = ("ServiceUnavailable", "ServiceUnavailable", 503)
    TOO_MANY_ENTRIES = (
        "TooManyEntriesInBatchRequest",
        "AWS.SimpleQueueService.TooManyEntriesInBatchRequest",
        400,
    )
    UNSUPPORTED_OPERATION = ("UnsupportedOperation", "AWS.SimpleQueueService.UnsupportedOperation", 400)

    @property
    def shape(self) -> str:
        return self.value[0]

    @property
    def query_code(self) -> str:
        return self.value[1]

    @property
    def status(self) -> int:
        return self.value[2]

    @property
    def is_sender_fault(self) -> bool:
        return self.status < _SERVER_FAULTS_FROM


_SERVER_FAULTS_FROM: Final = 500
