"""The world that nodes are simulated in does what it says: time, owners, the network, the metadata store's faults."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.base.clock import ManualClock
from penstock.cluster.store.protocol import StoreUnavailableError
from support.sim.loop import EverybodyWaitsError
from support.sim.network import NetworkedLoop
from support.sim.store import EVERYBODY, SimEngine, SimStore

SERVER = "127.0.0.1"


def run(main: Callable[[NetworkedLoop], Awaitable[None]], *, seed: int = 1) -> NetworkedLoop:
    loop = NetworkedLoop(seed)

    async def work() -> None:
        await main(loop)

    try:
        loop.run_until_complete(work())
    finally:
        loop.forget()
        loop.close()
    return loop


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


async def echo_server(loop: NetworkedLoop) -> None:
    async def serve() -> None:
        await loop.create_server(Echo, SERVER, 9)

    await loop.start_as(f"{SERVER}#1", serve())


def test_an_hour_takes_no_time() -> None:
    async def main(loop: NetworkedLoop) -> None:
        await asyncio.sleep(3600)
        assert loop.time() >= 3600

    run(main)


def test_who_waits_for_nobody_is_found_out() -> None:
    async def main(loop: NetworkedLoop) -> None:
        await loop.create_future()

    with pytest.raises(EverybodyWaitsError):
        run(main)


def test_a_paused_owner_does_nothing_until_it_is_resumed() -> None:
    ticks: list[float] = []

    async def main(loop: NetworkedLoop) -> None:
        async def tick() -> None:
            while True:
                ticks.append(loop.time())
                await asyncio.sleep(1)

        loop.start_as("n1", tick())
        await asyncio.sleep(2.5)
        loop.pause("n1")
        await asyncio.sleep(10)
        assert len(ticks) == 3
        loop.resume("n1")
        await asyncio.sleep(1.5)

    run(main)
    assert ticks == [0.0, 1.0, 2.0, 12.5, 13.5]


def test_a_killed_owner_does_not_even_clean_up() -> None:
    cleaned: list[str] = []

    async def main(loop: NetworkedLoop) -> None:
        async def live(name: str) -> None:
            try:
                await asyncio.sleep(1)
            finally:
                if loop.is_running():
                    cleaned.append(name)

        loop.start_as("n1", live("n1"))
        loop.start_as("n2", live("n2"))
        await asyncio.sleep(0.5)
        loop.kill("n1")
        await asyncio.sleep(5)

    run(main)
    assert cleaned == ["n2"]


def test_what_is_sent_arrives_in_order() -> None:
    async def main(loop: NetworkedLoop) -> None:
        await echo_server(loop)
        reader, writer = await asyncio.open_connection(SERVER, 9)
        for number in range(200):
            writer.write(b"%03d" % number)
        expected = b"".join(b"%03d" % number for number in range(200))
        assert await reader.readexactly(len(expected)) == expected

    run(main)


def test_a_link_that_is_cut_one_way_keeps_what_is_sent_until_it_is_healed() -> None:
    async def main(loop: NetworkedLoop) -> None:
        await echo_server(loop)
        reader, writer = await asyncio.open_connection(SERVER, 9)
        loop.network.cut(SERVER, "world")
        writer.write(b"hello")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(5), 60)
        loop.network.heal()
        assert await reader.readexactly(5) == b"hello"

    run(main)


def test_a_slow_link_takes_its_time() -> None:
    async def main(loop: NetworkedLoop) -> None:
        await echo_server(loop)
        reader, writer = await asyncio.open_connection(SERVER, 9)
        loop.network.link("world", SERVER).bytes_per_second = 1000
        began = loop.time()
        writer.write(bytes(5000))
        await reader.readexactly(5000)
        assert loop.time() - began >= 5

    run(main)


def test_both_ends_hear_of_a_reset() -> None:
    async def main(loop: NetworkedLoop) -> None:
        await echo_server(loop)
        reader, _writer = await asyncio.open_connection(SERVER, 9)
        loop.network.reset(SERVER, "world")
        with pytest.raises(ConnectionResetError):
            await reader.read(1)

    run(main)


def test_nobody_answers_where_nobody_listens() -> None:
    async def main(loop: NetworkedLoop) -> None:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(SERVER, 9)

    run(main)


def test_a_transaction_whose_reply_is_lost_was_done() -> None:
    async def main(loop: NetworkedLoop) -> None:
        engine = SimEngine(ManualClock(), loop.random)
        store = SimStore(engine, "n1")
        engine.faults.lost_reply_chance = 1.0
        with pytest.raises(StoreUnavailableError):
            await store.txn(puts={"/a": b"1"})
        engine.faults.lost_reply_chance = 0.0
        assert await store.get("/a") is not None

    run(main)


@pytest.mark.parametrize(("away", "is_reached"), [("n1", False), ("n2", True), (EVERYBODY, False)])
def test_a_store_is_away_for_one_or_for_all(away: str, is_reached: bool) -> None:
    async def main(loop: NetworkedLoop) -> None:
        engine = SimEngine(ManualClock(), loop.random)
        engine.faults.away.add(away)
        try:
            await SimStore(engine, "n1").get("/a")
        except StoreUnavailableError:
            assert not is_reached
        else:
            assert is_reached

    run(main)


def test_a_request_that_has_left_is_done_though_its_sender_dies() -> None:
    async def main(loop: NetworkedLoop) -> None:
        engine = SimEngine(ManualClock(), loop.random)
        engine.faults.latency_seconds = (0.1, 0.1)
        store = SimStore(engine, "n1")
        loop.start_as("n1", store.txn(puts={"/a": b"1"}))
        await asyncio.sleep(0.05)
        loop.kill("n1")
        await asyncio.sleep(1)
        assert engine.state.get("/a") is not None

    run(main)
