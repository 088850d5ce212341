"""ListOffsets with each of its special timestamps, and OffsetForLeaderEpoch."""

from __future__ import annotations

from conformance.differential.dialogue_fetch import filled
from conformance.differential.talk import Talk, dialogue
from penstock.codec.kafka.messages import list_offsets as lo
from penstock.codec.kafka.messages import offset_for_leader_epoch as oe
from penstock.codec.kafka.messages.produce import ProduceRequest
from support.door.kafka_phrases import DAY_MS, batch, list_offsets, produce


@dialogue(lo.ListOffsetsRequest)
def list_offsets_by_time(talk: Talk) -> None:
    topic = talk.topic("timed")
    for values, timestamp_ms in (((b"a", b"b"), DAY_MS), ((b"c", b"d"), DAY_MS + 1000), ((b"late",), DAY_MS + 500)):
        talk.quietly(produce(topic, batch(*values, timestamp_ms=timestamp_ms), topic_id=talk.ids[topic]))
    for after_ms in (-5, 0, 1, 2, 500, 501, 1000, 1001, 1002):
        talk.ask(f"{after_ms} ms on", list_offsets(topic, DAY_MS + after_ms))
    talk.ask("time zero", list_offsets(topic, 0))
    for special in (-1, -2, -3, -4, -5, -6, -7):
        talk.ask(f"special {special}", list_offsets(topic, special))


@dialogue(lo.ListOffsetsRequest)
def list_offsets_of_empty(talk: Talk) -> None:
    topic = talk.topic("empty")
    for special in (0, -1, -2, -3, -4, -5, -6):
        talk.ask(f"special {special}", list_offsets(topic, special))
    talk.ask("no such partition", list_offsets(topic, -1, 9))
    talk.ask("no such topic", list_offsets(talk.name("absent"), -1))
    for epoch in (0, 1, 99):
        talk.ask(f"leader epoch {epoch}", list_offsets(topic, -1, leader_epoch=epoch))
    for level in (0, 1, 3):
        place = lo.ListOffsetsPartition(partition_index=0, timestamp=-1)
        request = lo.ListOffsetsRequest(
            replica_id=-1, isolation_level=level, topics=(lo.ListOffsetsTopic(topic, (place,)),)
        )
        talk.ask(f"isolation {level}", request)
    twice = lo.ListOffsetsTopic(topic, (lo.ListOffsetsPartition(0, -1, -1), lo.ListOffsetsPartition(0, -1, -2)))
    talk.ask("one partition twice", lo.ListOffsetsRequest(replica_id=-1, topics=(twice,)))
    talk.ask("nothing", lo.ListOffsetsRequest(replica_id=-1))


@dialogue(oe.OffsetForLeaderEpochRequest, ProduceRequest)
def offset_for_leader_epoch(talk: Talk) -> None:
    topic, _ = filled(talk)
    empty = talk.topic("empty")

    def ask(step: str, name: str, epoch: int, current: int = -1, partition: int = 0) -> None:
        place = oe.OffsetForLeaderPartition(partition, current, epoch)
        request = oe.OffsetForLeaderEpochRequest(replica_id=-1, topics=(oe.OffsetForLeaderTopic(name, (place,)),))
        talk.ask(step, request)

    for epoch in (-1, 0, 1, 7):
        ask(f"epoch {epoch}", topic, epoch)
        ask(f"epoch {epoch} of an empty log", empty, epoch)
    ask("current 0", topic, 0, 0)
    ask("current 5", topic, 0, 5)
    ask("no such partition", topic, 0, partition=9)
    ask("no such topic", talk.name("absent"), 0)
