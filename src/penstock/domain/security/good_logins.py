"""Passwords that were right a moment ago, in a form that is worth nothing elsewhere: they need not be hashed again.

What is kept is a keyed digest of the password and of what proves it in the metadata. The key is made anew by every
process and never leaves it, so the digests cannot be tried out without the memory of a running node, which sees
passwords anyway. A changed credential fits no digest any more, and its user is forgotten besides.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from typing import Final

from penstock.domain.security.scram import ScramCredential

# Some 2 MB; those who logged in least recently are forgotten first.
USERS_MAX: Final = 10_000


class GoodLogins:
    def __init__(self, key: bytes, *, users_max: int = USERS_MAX) -> None:
        self._key = key
        self._users_max = users_max
        self._digests: OrderedDict[str, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._digests)

    def holds(self, user: str, credential: ScramCredential, password: str) -> bool:
        known = self._digests.get(user)
        # Worked out for names that are not known too: the time tells nothing of them.
        is_same = hmac.compare_digest(known or b"", self._digest(credential, password))
        if is_same:
            self._digests.move_to_end(user)
        return is_same

    def add(self, user: str, credential: ScramCredential, password: str) -> None:
        self._digests[user] = self._digest(credential, password)
        self._digests.move_to_end(user)
        if len(self._digests) > self._users_max:
            self._digests.popitem(last=False)

    def forget(self, user: str) -> None:
        self._digests.pop(user, None)

    def _digest(self, credential: ScramCredential, password: str) -> bytes:
        return hmac.digest(self._key, credential.stored_key + password.encode(), "sha256")
