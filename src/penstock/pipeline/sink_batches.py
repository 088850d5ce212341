"""Rows as Spark hands them over into record batches, each for one partition of one topic: by columns, never by row.

Rows of one partition keep their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.codec.columns import build_batches_from_columns
from penstock.codec.compression import Codec
from penstock.codec.record_batch import HEADER_BYTES
from penstock.codec.records import BatchHeader
from penstock.codec.batch_rewrite import header_of
from penstock.pipeline.sink_partitions import choose_partitions

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa
