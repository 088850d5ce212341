"""How a mirror writes: in transactions, each record exactly once; or, where the target's are too old, at least once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Protocol

from penstock.base.log_events import get_logger
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.producer import Acknowledged, PartitionBatch, Producer, ProducerOptions
from penstock.client.kafka.transactional_producer import TransactionalProducer
from penstock.net.errors import BrokerError, ClientError, ProtocolMismatchError

log_events = get_logger("mirror")

ABORT_PATIENCE_MS = 5_000


class MirrorTarget(Protocol):
    @property
    def is_exactly_once(self) -> bool: ...

    async def send(self, batches: Sequence[PartitionBatch]) -> list[int]: ...

    async def commit(self) -> None: ...

    async def abort(self) -> None: ...


async def open_target(
    client: ClusterClient, transactional_id: str, *, patience_ms: int, exactly_once: type[ExactlyOnce] | None = None
) -> MirrorTarget:
    """Fences whoever mirrored this topic under this name before."""
    producer = TransactionalProducer(client, transactional_id, patience_ms=patience_ms)
    try:
        await producer.start()
    except ProtocolMismatchError as error:
        log_events.warning("records may be mirrored twice after a failure", reason=str(error))
        plain = Producer(client, ProducerOptions(is_idempotent=True, delivery_timeout_ms=patience_ms))
        await plain.start()
        return _AtLeastOnce(plain)
    return (exactly_once or ExactlyOnce)(producer)


class ExactlyOnce:
    is_exactly_once = True

    def __init__(self, producer: TransactionalProducer) -> None:
        self._producer = producer

    async def send(self, batches: Sequence[PartitionBatch]) -> list[int]:
        return await self._producer.send(batches)

    async def commit(self) -> None:
        await self._producer.commit()

    async def abort(self) -> None:
        # If it cannot be done, the timeout ends it, or the next mirror of this topic.
        with contextlib.suppress(ClientError, TimeoutError):
            # Also while an answer is awaited: a broker that hangs gives none.
            async with asyncio.timeout(ABORT_PATIENCE_MS / 1000):
                await self._producer.abort(patience_ms=ABORT_PATIENCE_MS)


class _AtLeastOnce:
    """What was acknowledged stays, whatever follows."""

    is_exactly_once = False

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    async def send(self, batches: Sequence[PartitionBatch]) -> list[int]:
        offsets: list[int] = []
        for outcome in await self._producer.send(batches):
            if not isinstance(outcome, Acknowledged):
                raise BrokerError(outcome.code, outcome.sentence())
            offsets.append(outcome.base_offset)
        return offsets

    async def commit(self) -> None:
        pass

    async def abort(self) -> None:
        pass
