"""What can go wrong when a member of etcd is asked, by what is known of the request afterwards.

NotSentError      nothing left this node: another member may be asked, whatever it was
UnansweredError   it was sent, and what became of it is not known
RefusedError      a member answered, and said no
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from penstock.cluster.store.etcd import messages
from penstock.cluster.store.protocol import StoreError, StoreFullError, StoreUnavailableError
from penstock.cluster.store.settings import EtcdMember

_UNAUTHENTICATED: Final = 401
NOT_FOUND: Final = 404
# gRPC's number for "out of range": the revision is compacted, or still to come.
OUT_OF_RANGE: Final = 11
_SERVER_FAULTS_FROM: Final = 500
# Somebody changed users or roles meanwhile: the same login has to be made anew.
_OLD_LOGIN: Final = "revision of auth store is old"
_NO_SPACE: Final = "database space exceeded"
_REASON_CHARACTERS_MAX: Final = 200


class MemberFaultError(Exception):
    """`reason` goes on after the member's name."""

    is_doubtful: ClassVar = True

    def __init__(self, member: EtcdMember, reason: str) -> None:
        super().__init__(f"etcd at {member} {reason}")
        self.member = member

    def store_error(self, *, is_change: bool = False) -> StoreError:
        """For whoever asked. `is_change`: what came of it is then worth a word."""
        unknown = "; the change may have been made or not" if is_change and self.is_doubtful else ""
        return StoreUnavailableError(f"metadata is out of reach: {self}{unknown}")


class NotSentError(MemberFaultError):
    is_doubtful = False


class UnansweredError(MemberFaultError):
    pass


class RefusedError(MemberFaultError):
    def __init__(self, member: EtcdMember, status: int, body: bytes) -> None:
        refusal = _read_refusal(body)
        words = refusal.message[:_REASON_CHARACTERS_MAX] or "no reason given"
        if not refusal.code and status == NOT_FOUND:
            words = "it has no JSON gateway, or is no etcd"
        super().__init__(member, f"answered {status}: {words}")
        self.status = status
        self.code = refusal.code
        self._words = refusal.message

    @property
    def is_of_the_member(self) -> bool:
        """Another member may know better: this one has no leader, or is too busy."""
        return self.status >= _SERVER_FAULTS_FROM

    @property
    def wants_login(self) -> bool:
        """Told before anything is done, so the request may be sent again."""
        return self.status == _UNAUTHENTICATED or _OLD_LOGIN in self._words

    def store_error(self, *, is_change: bool = False) -> StoreError:
        if _NO_SPACE in self._words:
            return StoreFullError(f"metadata cannot be changed: {self}")
        if self.is_of_the_member:
            return super().store_error(is_change=is_change)
        return StoreUnavailableError(f"metadata cannot be used: {self}")


def _read_refusal(body: bytes) -> messages.Refusal:
    try:
        return messages.refusal.decode(body)
    except msgspec.DecodeError:
        return messages.Refusal()
