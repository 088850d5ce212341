"""What can go wrong between a node and whoever is connected to it, each with the one sentence that a user reads.

A broker's refusal of one partition among many is a value in that API's result; these are raised when the
whole request has failed, or when the caller asked for one thing only.
"""

from __future__ import annotations

from penstock.codec.kafka import ErrorCode


class ClientError(Exception):
    """The base of all of them: its text is one sentence, fit for a terminal."""


class BrokerUnreachableError(ClientError):
    """No connection could be made."""


class BrokerRefusedError(BrokerUnreachableError):
    """The machine is there and says that nobody listens: the process is gone, or was never started."""


class ConnectionLostError(ClientError):
    """The connection ended while replies were owed: whether those requests took effect is not known."""


class RequestTimeoutError(ClientError):
    """The broker did not answer in time; the connection is closed, because replies come in order."""


class ProtocolMismatchError(ClientError):
    """The other side speaks something else, or versions that do not overlap with ours."""


class HandshakeLostError(ProtocolMismatchError, BrokerUnreachableError):
    """The connection ended before anything was agreed on: another kind of server, or a broker that was going down. Both
    are meant, so that whoever tries again after the one tries again after this."""


class LoginFailedError(ClientError):
    """The broker does not believe who we are, or we did not say. Trying again does not help."""


class PeerError(ClientError):
    """Another node of the cluster could not be asked, or did not answer."""


class PeerUnreachableError(PeerError):
    """There is no connection to the node: nothing was asked of it."""


class PeerRefusedError(PeerUnreachableError):
    """Its machine is there and says that nobody listens: the node is dead, and its machine is not."""


class PeerMismatchError(PeerError):
    """There is somebody, but not a node that may be talked to: another secret, cluster, feature level or node."""


class PeerLostError(PeerError):
    """It was asked and has not answered: whether the request took effect is not known."""


class BrokerError(ClientError):
    """The broker answered with an error code."""

    def __init__(self, code: int, what: str, detail: str | None = None) -> None:
        self.code = code
        self.detail = detail
        super().__init__(f"{what}: {describe_code(code)}" + (f" ({detail})" if detail else ""))


def describe_code(code: int) -> str:
    """A wire error code in words: `unknown topic or partition`."""
    try:
        return ErrorCode(code).name.removesuffix("_EXCEPTION").lower().replace("_", " ")
    except ValueError:
        return f"error code {code}"
