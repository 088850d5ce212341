"""Makes Spark find `format("penstock")` by itself: it looks for a package of this name with a `DefaultSource`."""

from penstock.pipeline.spark_source import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]
