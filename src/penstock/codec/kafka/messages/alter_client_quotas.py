"""AlterClientQuotas: limits of users and clients are set and removed."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.kafka.schema import Bool, Float64, Int16, Int32, Message, Request, Response, String


class EntityData(Message, frozen=True):
    entity_type: String = ""
    entity_name: String | None = None


class OpData(Message, frozen=True):
    key: String = ""
    value: Float64 = 0.0
    remove: Bool = False


class EntryData(Message, frozen=True):
    entity: Sequence[EntityData] = ()
    ops: Sequence[OpData] = ()


class AlterClientQuotasRequest(Request, frozen=True):
    api_key = 49
    valid_versions = "0-1"
    flexible_versions = "1+"

    entries: Sequence[EntryData] = ()
    validate_only: Bool = False


class EntryResult(Message, frozen=True):
    error_code: Int16 = 0
    error_message: String | None = None
    entity: Sequence[EntityData] = ()


class AlterClientQuotasResponse(Response, frozen=True):
    api_key = 49
    valid_versions = "0-1"
    flexible_versions = "1+"

    throttle_time_ms: Int32 = 0
    entries: Sequence[EntryResult] = ()
