"""Who is next where passwords are checked: addresses take turns, and users of one address take turns there.

Checking one takes some 20 ms by intention, so strangers who try passwords could make everybody wait. Here they make
wait only those of their own address, and there only those of the name they try. `take` gives the next; pure, so that
its fairness can be proved without a clock.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, TypeVar

Check = TypeVar("Check")

# Twenty seconds of one thread: whoever waits longer has been hung up on by then, or soon will be.
WAITING_PER_ADDRESS_MAX: Final = 1_000
# Of all addresses, with 4 KiB of a password each at the most.
WAITING_MAX: Final = 8_000


class LoginQueue(Generic[Check]):
    def __init__(self, *, waiting_max: int = WAITING_MAX, per_address_max: int = WAITING_PER_ADDRESS_MAX) -> None:
        self._waiting_max = waiting_max
        self._per_address_max = per_address_max
        # In the order of their turns.
        self._addresses: dict[str, dict[str, deque[Check]]] = {}
        self._counts: dict[str, int] = {}
        self.count = 0

    def add(self, address: str, user: str, check: Check) -> bool:
        """False: there is no room."""
        held = self._counts.get(address, 0)
        if self.count >= self._waiting_max or held >= self._room_of_one():
            return False
        self._addresses.setdefault(address, {}).setdefault(user, deque()).append(check)
        self._counts[address] = held + 1
        self.count += 1
        return True

    def _room_of_one(self) -> int:
        """The second half of the places is shared out: a few addresses that ask for all of them leave it to others."""
        if self.count < self._waiting_max // 2:
            return self._per_address_max
        share = self._waiting_max // 2 // (len(self._addresses) + 1)
        return min(self._per_address_max, max(1, share))

    def take(self) -> Check | None:
        """The next one, or None. Its user goes to the end of its address, and its address to the end of all."""
        if not self._addresses:
            return None
        address, users = next(iter(self._addresses.items()))
        user, checks = next(iter(users.items()))
        check = checks.popleft()
        del self._addresses[address], users[user]
        if checks:
            users[user] = checks
        if users:
            self._addresses[address] = users
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]
        self.count -= 1
        return check
