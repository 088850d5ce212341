"""What the disk layer counts."""

from __future__ import annotations

from penstock.base.metrics import CollectorRegistry, Counter, Gauge, Histogram

_SYNC_BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class StorageMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.damage = Counter("penstock_log_damage", "Damaged places found in logs", registry=registry)
        self.scrubbed_bytes = Counter("penstock_scrub_bytes", "Bytes checked by the scrubber", registry=registry)
        self.scrub_mended = Counter(
            "penstock_scrub_mended", "Places that had rotted on disk, written anew from memory", registry=registry
        )
        self.offline_logs = Gauge(
            "penstock_logs_offline", "Logs offline after a failed sync or write", registry=registry
        )
        self.sync_failures = Counter("penstock_sync_failures", "Syncs that failed", registry=registry)
        self.sync_seconds = Histogram(
            "penstock_sync_seconds", "Duration of one turn of group commit", buckets=_SYNC_BUCKETS, registry=registry
        )
        self.turn_logs = Counter("penstock_sync_logs", "Logs covered by turns of group commit", registry=registry)
        self.disk_full = Gauge("penstock_disk_full", "1 while writes are refused for lack of room", registry=registry)
        self.refused_full = Counter(
            "penstock_appends_refused_disk_full", "Appends refused for lack of room", registry=registry
        )
        self.torn_bytes = Counter("penstock_recovery_torn_bytes", "Bytes cut from torn tails", registry=registry)
        self.scanned_bytes = Counter("penstock_recovery_scanned_bytes", "Bytes read by recovery", registry=registry)
        self.cleaned_bytes = Counter("penstock_compaction_read_bytes", "Bytes read by compaction", registry=registry)
        self.compacted_bytes = Counter(
            "penstock_compaction_removed_bytes", "Bytes removed by compaction", registry=registry
        )
        self.retired_bytes = Counter("penstock_retention_bytes", "Bytes removed by retention", registry=registry)
