"""What happens when somebody stays silent: members, joiners, transactions. Run in the newest versions only."""

from __future__ import annotations

from conformance.differential.dialogue_classic_groups import Group
from conformance.differential.talk import Talk, dialogue
from conformance.differential.transactional_producer import TransactionalProducer, committed
from penstock.codec.kafka.messages.describe_groups import DescribeGroupsRequest
from penstock.codec.kafka.messages.end_txn import EndTxnRequest
from penstock.codec.kafka.messages.init_producer_id import InitProducerIdRequest
from penstock.codec.kafka.messages.join_group import JoinGroupRequest
from penstock.codec.kafka.messages.produce import ProduceRequest
from support.group.phrases import join

# The shortest session that a broker takes by default.
SESSION_MS = 6_000


@dialogue(DescribeGroupsRequest)
def member_that_falls_silent(talk: Talk) -> None:
    if talk.version(DescribeGroupsRequest) < talk.newest(DescribeGroupsRequest()):
        return
    group, static = Group(talk), Group(talk, "static")
    me = group.join("join", session_ms=SESSION_MS)
    group.sync("sync", me.member_id, me.generation_id)
    one = static.join("static joins", session_ms=SESSION_MS, instance_id="one")
    static.sync("static syncs", one.member_id, one.generation_id, instance_id="one")
    group.until("Empty")
    static.until("Empty")
    group.describe("empty")
    static.describe("static, empty")
    group.beat("heartbeat too late", me.member_id, me.generation_id)
    group.join("join too late", me.member_id)
    static.beat("static heartbeat too late", one.member_id, one.generation_id, instance_id="one")


@dialogue(JoinGroupRequest)
def member_that_does_not_join_again(talk: Talk) -> None:
    """It is left behind when the time for joining is over."""
    if talk.version(JoinGroupRequest) < 4:
        return
    group = Group(talk)
    slow = group.join("slow joins", rebalance_ms=300)
    group.sync("slow syncs", slow.member_id, slow.generation_id)
    quick_id = talk.ask("quick is named", join(group=group.name, rebalance_ms=300), on="quick").member_id
    quick = talk.hear(talk.send("quick joins", join(quick_id, group=group.name, rebalance_ms=300), on="quick"))
    group.beat("slow heartbeats", slow.member_id, slow.generation_id)
    group.join("slow joins again", slow.member_id, rebalance_ms=300)
    group.sync("quick syncs", quick_id, quick.generation_id)
    group.describe("without the slow one")


@dialogue(InitProducerIdRequest, ProduceRequest, EndTxnRequest)
def transaction_that_takes_too_long(talk: Talk) -> None:
    topic = talk.topic("orders")
    producer = TransactionalProducer(talk)
    producer.init("init", transaction_timeout_ms=300)
    producer.add("add", topic, 0)
    producer.send("send", topic, b"a")
    producer.settle()
    producer.describe("aborted")
    talk.ask("nothing to read", committed(topic, talk.ids[topic]))
    producer.send("send too late", topic, b"b")
    producer.add("add too late", topic, 0)
    producer.end("commit too late", commit=True)
    producer.init("init again")
    producer.add("add again", topic, 0)
    producer.send("send again", topic, b"c")
    producer.end("commit", commit=True)
    producer.settle()
    talk.ask("something to read", committed(topic, talk.ids[topic]))
