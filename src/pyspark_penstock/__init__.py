"""Makes Spark find `format("penstock")` by itself: it looks for a package of this name with a `DefaultSource`."""

from penstock.pipeline.connector.source import PenstockSource as DefaultSource

__all__ = ["DefaultSource", "enable_filter_pushdown"]


def enable_filter_pushdown() -> None:
    """Conditions on offset, timestamp, partition and topic spare reading, in all sessions of this process.

    For the driver alone: tasks and Spark's planning, which import this package too, do without.
    """
    from penstock.pipeline.connector.pushdown import enable_filter_pushdown

    enable_filter_pushdown()
