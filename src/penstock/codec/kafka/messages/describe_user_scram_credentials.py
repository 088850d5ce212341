"""DescribeUserScramCredentials: which users have passwords, and how they are salted; never the passwords."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.kafka.schema import Int8, Int16, Int32, Message, Request, Response, String


class UserName(Message, frozen=True):
    name: String = ""


class DescribeUserScramCredentialsRequest(Request, frozen=True):
    api_key = 50
    valid_versions = "0"
    flexible_versions = "0+"

    users: Sequence[UserName] | None = None


class CredentialInfo(Message, frozen=True):
    mechanism: Int8 = 0
    iterations: Int32 = 0


class DescribeUserScramCredentialsResult(Message, frozen=True):
    user: String = ""
    error_code: Int16 = 0
    error_message: String | None = None
    credential_infos: Sequence[CredentialInfo] = ()


class DescribeUserScramCredentialsResponse(Response, frozen=True):
    api_key = 50
    valid_versions = "0"
    flexible_versions = "0+"

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    results: Sequence[DescribeUserScramCredentialsResult] = ()
