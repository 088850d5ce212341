"""UpdateFeatures: the levels of features that are switched on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import Bool, Int8, Int16, Int32, Message, Request, Response, String, Versions


class FeatureUpdateKey(Message, frozen=True):
    feature: String = ""
    max_version_level: Int16 = 0
    allow_downgrade: Annotated[Bool, Versions("0")] = False
    upgrade_type: Annotated[Int8, Versions("1+")] = 1


class UpdateFeaturesRequest(Request, frozen=True):
    api_key = 57
    valid_versions = "0-2"
    flexible_versions = "0+"

    timeout_ms: Int32 = 60000
    feature_updates: Sequence[FeatureUpdateKey] = ()
    validate_only: Annotated[Bool, Versions("1+")] = False


class UpdatableFeatureResult(Message, frozen=True):
    feature: String = ""
    error_code: Int16 = 0
    error_message: String | None = None


class UpdateFeaturesResponse(Response, frozen=True):
    api_key = 57
    valid_versions = "0-2"
    flexible_versions = "0+"

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    results: Annotated[Sequence[UpdatableFeatureResult], Versions("0-1")] = ()
