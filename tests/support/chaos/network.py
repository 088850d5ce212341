"""A network of its own for each process: namespaces on one bridge, whose ways to each other can be cut.

    with Network(("1", "2", "3", "store")) as network:
        network.address("1")            # 10.…
        network.wrapper("1")            # put before a command: it runs there
        network.cut("1", "store")       # silence: nobody is refused, nothing arrives, either way
        network.cut_one_way("1", "2")   # what 1 sends to 2 is lost; what 2 sends arrives
        network.heal()

The test itself stands on the bridge and reaches everybody. A cut is a neighbour whose address is that of nobody:
packets leave and are taken by no one, in connections that are open as well as in new ones. It takes root and `ip`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

import pytest

_STEP_SECONDS_MAX: Final = 20
# Of nobody: bit 1 of the first byte says that it was given out by no maker.
_NOBODY: Final = "02:de:ad:00:00:01"
# 10.N.x.y is one of these networks, by this process's number: two test runs do not meet.
_NETWORKS: Final = 200
_FIRST_HOST: Final = 11
_OWN_HOST: Final = 254


class Network:
    def __init__(self, places: Sequence[str]) -> None:
        number = os.getpid()
        self._prefix = f"10.{20 + number % _NETWORKS}.{number // _NETWORKS % 250}"
        self._bridge = f"pb{number}"
        self._spaces = {place: f"ps{number}-{index}" for index, place in enumerate(places)}
        self._hosts = {place: _FIRST_HOST + index for index, place in enumerate(places)}
        self._cuts: set[tuple[str, str]] = set()

    def address(self, place: str) -> str:
        return f"{self._prefix}.{self._hosts[place]}"

    def wrapper(self, place: str) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self._spaces[place])

    # cuts

    def cut(self, first: str, second: str) -> None:
        self.cut_one_way(first, second)
        self.cut_one_way(second, first)

    def cut_one_way(self, sender: str, receiver: str) -> None:
        self._in(sender, "neigh", "replace", self.address(receiver), "lladdr", _NOBODY, "nud", "permanent", "dev", "e0")
        self._cuts.add((sender, receiver))

    def heal(self) -> None:
        for sender, receiver in sorted(self._cuts):
            self._in(sender, "neigh", "del", self.address(receiver), "dev", "e0")
        self._cuts.clear()

    # life

    def __enter__(self) -> Self:
        if os.geteuid() != 0 or shutil.which("ip") is None:
            pytest.skip("network namespaces take root and the command ip")
        try:
            self._make()
        except (OSError, subprocess.SubprocessError) as error:
            self._remove()
            pytest.skip(f"there are no network namespaces here: {getattr(error, 'stderr', None) or error}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _make(self) -> None:
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{self._prefix}.{_OWN_HOST}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for place, space in self._spaces.items():
            outside = f"pv{os.getpid()}-{self._hosts[place]}"
            _ip("netns", "add", space)
            _ip("link", "add", outside, "type", "veth", "peer", "name", "e0", "netns", space)
            _ip("link", "set", outside, "master", self._bridge, "up")
            self._in(place, "addr", "add", f"{self.address(place)}/24", "dev", "e0")
            self._in(place, "link", "set", "e0", "up")
            self._in(place, "link", "set", "lo", "up")

    def _remove(self) -> None:
        """Whatever of it is there; a pair of devices goes with its namespace."""
        for space in self._spaces.values():
            with suppress(OSError, subprocess.SubprocessError):
                _ip("netns", "del", space)
        with suppress(OSError, subprocess.SubprocessError):
            _ip("link", "del", self._bridge)

    def _in(self, place: str, *arguments: str) -> None:
        _ip("-n", self._spaces[place], *arguments)


def _ip(*arguments: str) -> None:
    subprocess.run(("ip", *arguments), check=True, capture_output=True, text=True, timeout=_STEP_SECONDS_MAX)
