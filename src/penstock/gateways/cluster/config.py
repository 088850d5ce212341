"""The settings of the internal door."""

from __future__ import annotations

import msgspec

from penstock.gateways.door import OFF


class ClusterDoorConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For other nodes alone: it belongs on a network that clients do not reach."""

    listen: str = OFF
    # HOST:PORT that other nodes are told to connect to. Empty: the address that is listened on.
    advertised: str = ""
