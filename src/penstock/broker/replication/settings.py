"""How patient a node is with those who follow it."""

from __future__ import annotations

import msgspec

from penstock.broker.machine.rehearsals import RehearsalSettings


class ReplicationSettings(msgspec.Struct, frozen=True):
    # Who has not caught up for so long is waited for no longer.
    replica_lag_ms: int = 10_000
    # How often those are looked at who may fall behind.
    tick_ms: int = 1_000
    # Changes of sets that come together make one transaction.
    gather_ms: int = 20
    # What is far behind is fetched from one leader no faster.
    catch_up_bytes_per_second: int = 64 * 1024 * 1024
    # For what followers ask for and memory does not have.
    reader_threads: int = 2
    rehearsal: RehearsalSettings = RehearsalSettings()
