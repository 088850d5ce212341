"""The sinks that there are. In an error of the file they are named in this order."""

from __future__ import annotations

from penstock.pipeline.declared.sinks import console, delta, parquet, topic

Sink = topic.TopicSink | delta.DeltaSink | parquet.ParquetSink | console.ConsoleSink
