"""DescribeClientQuotas: the limits of users and clients."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.kafka.schema import Bool, Float64, Int8, Int16, Int32, Message, Request, Response, String


class ComponentData(Message, frozen=True):
    entity_type: String = ""
    match_type: Int8 = 0
    match: String | None = None


class DescribeClientQuotasRequest(Request, frozen=True):
    api_key = 48
    valid_versions = "0-1"
    flexible_versions = "1+"

    components: Sequence[ComponentData] = ()
    strict: Bool = False


class EntityData(Message, frozen=True):
    entity_type: String = ""
    entity_name: String | None = None


class ValueData(Message, frozen=True):
    key: String = ""
    value: Float64 = 0.0


class EntryData(Message, frozen=True):
    entity: Sequence[EntityData] = ()
    values: Sequence[ValueData] = ()


class DescribeClientQuotasResponse(Response, frozen=True):
    api_key = 48
    valid_versions = "0-1"
    flexible_versions = "1+"

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    entries: Sequence[EntryData] | None = ()
