"""Where copies come from: what goes round is left out, what only looks like it is not."""

from __future__ import annotations

from penstock.base.clock import SystemClock
from penstock.client.kafka.cluster_client import ClusterClient, TopicInfo
from penstock.codec.kafka import ErrorCode
from penstock.net.address import Address
from penstock.net.errors import BrokerError
from penstock.pipeline.mirror.origins import (
    ORIGINS_TOPIC,
    Claim,
    Origin,
    claim_of,
    goes_round,
    id_of,
    origins_of,
    read_claims,
    write_claim,
)


def topic(name: str, letter: str) -> TopicInfo:
    return TopicInfo(name, letter.encode() * 16, False, ())


def test_a_copy_goes_back_neither_directly_nor_by_way_of_others() -> None:
    origins = (Origin("hub", "aa"), Origin("west", "bb"))
    for target, is_round in (("hub", True), ("west", True), ("east", False), (None, False)):
        assert goes_round(origins, target=target, copy=None, has_prefix=True) is is_round
    assert not goes_round((), target="west", copy=None, has_prefix=True)


def test_without_a_prefix_only_the_very_topic_counts() -> None:
    origins = (Origin("west", id_of(topic("orders", "o"))),)
    assert goes_round(origins, target="west", copy=topic("orders", "o"), has_prefix=False)
    assert not goes_round(origins, target="west", copy=topic("orders", "n"), has_prefix=False)
    assert not goes_round(origins, target="west", copy=None, has_prefix=False)


def test_a_claim_says_nothing_of_another_topic_of_its_name_and_mirrors_into_one_copy_add_theirs() -> None:
    copy = topic("west.orders", "c")
    first = claim_of(copy, Origin("west", "w"), (), {})
    assert first == Claim(id_of(copy), (Origin("west", "w"),))
    both = claim_of(copy, Origin("south", "s"), (Origin("far", "f"),), {"west.orders": first})
    assert set(both.origins) == {Origin("west", "w"), Origin("south", "s"), Origin("far", "f")}
    assert origins_of(copy, {"west.orders": both}) == both.origins
    assert origins_of(topic("west.orders", "n"), {"west.orders": both}) == ()


async def test_who_may_not_use_the_topic_mirrors_without_it() -> None:
    refusal = BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "topic 'penstock-mirrors'")

    class Forbidding(ClusterClient):
        async def topic(self, name: str, *, is_fresh: bool = False, auto_create: bool = False) -> TopicInfo:
            asked.append(name)
            raise refusal

    asked: list[str] = []
    client = Forbidding([Address("127.0.0.1", 1)])
    assert await read_claims(client) == {}
    await write_claim(client, "orders", None, clock=SystemClock())
    assert asked == [ORIGINS_TOPIC] * 2
