"""AlterUserScramCredentials: gives users salted passwords and takes them away."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.kafka.schema import Bytes, Int8, Int16, Int32, Message, Request, Response, String


class ScramCredentialDeletion(Message, frozen=True):
    name: String = ""
    mechanism: Int8 = 0


class ScramCredentialUpsertion(Message, frozen=True):
    name: String = ""
    mechanism: Int8 = 0
    iterations: Int32 = 0
    salt: Bytes = b""
    salted_password: Bytes = b""


class AlterUserScramCredentialsRequest(Request, frozen=True):
    api_key = 51
    valid_versions = "0"
    flexible_versions = "0+"

    deletions: Sequence[ScramCredentialDeletion] = ()
    upsertions: Sequence[ScramCredentialUpsertion] = ()


class AlterUserScramCredentialsResult(Message, frozen=True):
    user: String = ""
    error_code: Int16 = 0
    error_message: String | None = None


class AlterUserScramCredentialsResponse(Response, frozen=True):
    api_key = 51
    valid_versions = "0"
    flexible_versions = "0+"

    throttle_time_ms: Int32 = 0
    results: Sequence[AlterUserScramCredentialsResult] = ()
