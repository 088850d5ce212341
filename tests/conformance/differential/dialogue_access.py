"""Rules about who may do what, users' credentials, and the settings of groups."""

from __future__ import annotations

from typing import Any

import msgspec

from conformance.differential.dialogue_configs import SET, change, describe
from conformance.differential.talk import Talk, dialogue
from penstock.codec.kafka.messages import alter_user_scram_credentials as au
from penstock.codec.kafka.messages import create_acls as ca
from penstock.codec.kafka.messages import delete_acls as da
from penstock.codec.kafka.messages import describe_user_scram_credentials as du
from penstock.codec.kafka.messages.describe_acls import DescribeAclsRequest
from penstock.codec.kafka.messages.describe_configs import DescribeConfigsRequest
from penstock.codec.kafka.messages.fetch import FetchRequest
from penstock.codec.kafka.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from penstock.codec.kafka.messages.list_offsets import ListOffsetsRequest
from penstock.codec.kafka.messages.metadata import MetadataRequest
from penstock.codec.kafka.messages.offset_commit import OffsetCommitRequest
from penstock.codec.kafka.messages.offset_fetch import OffsetFetchRequest
from penstock.codec.kafka.messages.produce import ProduceRequest
from support.door.kafka_phrases import batch, fetch, list_offsets, metadata, produce
from support.group.phrases import commit, join, positions

ANY, TOPIC, GROUP = 1, 2, 3
GROUP_SETTINGS = 32
LITERAL, PREFIXED, MATCH = 3, 4, 2
DENY, ALLOW = 2, 3
READ, WRITE, DESCRIBE, ALL = 3, 4, 8, 2
ANONYMOUS = "User:ANONYMOUS"


def rule(name: str, **how: Any) -> ca.AclCreation:
    plain = ca.AclCreation(TOPIC, name, LITERAL, "User:alice", "*", READ, ALLOW)
    return msgspec.structs.replace(plain, **how)


class Rules:
    """All of them are about names of this talk, so those of others are not seen."""

    def __init__(self, talk: Talk) -> None:
        self.talk = talk

    def create(self, step: str, *rules: ca.AclCreation) -> None:
        self.talk.ask(step, ca.CreateAclsRequest(creations=rules))

    def look(self, step: str, name: str | None, count: int | None = None, **how: Any) -> None:
        wish = DescribeAclsRequest(TOPIC, name, 1, None, None, ANY, ANY)
        request = msgspec.structs.replace(wish, **how)
        if count is None:
            self.talk.ask(step, request)
        else:
            self.talk.ask(step, request, until=lambda reply: sum(len(each.acls) for each in reply.resources) == count)

    def delete(self, step: str, name: str | None, **how: Any) -> None:
        wish = da.DeleteAclsFilter(TOPIC, name, 1, None, None, ANY, ANY)
        self.talk.ask(step, da.DeleteAclsRequest(filters=(msgspec.structs.replace(wish, **how),)))


@dialogue(DescribeAclsRequest, ca.CreateAclsRequest, da.DeleteAclsRequest)
def access_rules(talk: Talk) -> None:
    rules = Rules(talk)
    topic = talk.name("orders")
    rules.look("none", topic)
    rules.create("one", rule(topic))
    rules.look("it", topic, 1)
    rules.create("again", rule(topic))
    rules.create("two more", rule(topic, operation=WRITE), rule(talk.name("or"), resource_pattern_type=PREFIXED))
    rules.look("by name", topic, 2)
    rules.look("that match", topic, 3, pattern_type_filter=MATCH)
    rules.look("of a user", topic, principal_filter="User:alice")
    rules.look("of nobody", topic, principal_filter="User:bob")
    rules.look("about reading", topic, operation=READ)
    rules.look("that deny", topic, permission_type=DENY)
    rules.delete("delete about writing", topic, operation=WRITE)
    rules.delete("delete nothing", topic, operation=WRITE)
    rules.delete("delete what matches", topic, pattern_type_filter=MATCH)
    rules.look("nothing left", topic, 0, pattern_type_filter=MATCH)


@dialogue(ca.CreateAclsRequest)
def access_rules_refused(talk: Talk) -> None:
    rules = Rules(talk)
    topic = talk.name("orders")
    rules.create("no such kind of thing", rule(topic, resource_type=0))
    rules.create("any kind of thing", rule(topic, resource_type=ANY))
    rules.create("any operation", rule(topic, operation=ANY))
    rules.create("no such operation", rule(topic, operation=0))
    rules.create("any permission", rule(topic, permission_type=1))
    rules.create("pattern that only filters have", rule(topic, resource_pattern_type=MATCH))
    rules.create("a principal that is none", rule(topic, principal="alice"))
    rules.create("empty name", rule(""))
    rules.create("an operation that topics do not have", rule(topic, operation=12))
    rules.create("the cluster by another name", rule(topic, resource_type=4))
    rules.create("good and bad", rule(topic), rule("", operation=ANY))
    rules.create("nothing")
    rules.delete("clean up", topic, pattern_type_filter=MATCH)


@dialogue(ProduceRequest, FetchRequest, MetadataRequest, ListOffsetsRequest)
def topic_that_is_denied(talk: Talk) -> None:
    topic = talk.topic("secret")
    topic_id = talk.ids[topic]
    talk.quietly(produce(topic, batch(b"a"), topic_id=topic_id))
    talk.quietly(
        ca.CreateAclsRequest(creations=(rule(topic, principal=ANONYMOUS, operation=ALL, permission_type=DENY),))
    )
    talk.quietly_until(metadata(topic), lambda reply: reply.topics[0].error_code != 0)
    talk.ask("metadata", metadata(topic))
    talk.ask("produce", produce(topic, batch(b"b"), topic_id=topic_id))
    talk.ask("fetch", fetch(topic, topic_id=topic_id))
    talk.ask("list offsets", list_offsets(topic, -1))
    talk.ask("describe settings", describe(topic, ("retention.ms",)))
    talk.ask("change settings", change(topic, ("retention.ms", SET, "1")))
    talk.quietly(da.DeleteAclsRequest(filters=(da.DeleteAclsFilter(TOPIC, topic, 1, None, None, ANY, ANY),)))


@dialogue(OffsetCommitRequest, OffsetFetchRequest)
def group_that_is_denied(talk: Talk) -> None:
    topic, group = talk.topic("orders"), talk.name("secret")
    topic_id = talk.ids[topic]
    deny = rule(group, resource_type=GROUP, principal=ANONYMOUS, operation=ALL, permission_type=DENY)
    talk.quietly(ca.CreateAclsRequest(creations=(deny,)))
    talk.quietly_until(join(group=group), lambda reply: reply.error_code == 30)
    talk.ask("join", join(group=group))
    talk.ask("commit", commit({0: 1}, group=group, topic=topic, topic_id=topic_id))
    talk.ask("fetch", positions([0], group=group, topic=topic, topic_id=topic_id))
    talk.quietly(da.DeleteAclsRequest(filters=(da.DeleteAclsFilter(GROUP, group, 1, None, None, ANY, ANY),)))


@dialogue(du.DescribeUserScramCredentialsRequest, au.AlterUserScramCredentialsRequest)
def user_credentials(talk: Talk) -> None:
    user = talk.name("alice")

    def look(step: str, *names: str, until: Any = None) -> None:
        users = tuple(du.UserName(name) for name in names)
        talk.ask(step, du.DescribeUserScramCredentialsRequest(users=users), until=until)

    def put(step: str, mechanism: int, iterations: int, name: str = user, **how: Any) -> None:
        entry = au.ScramCredentialUpsertion(name, mechanism, iterations, b"salt", b"p" * 32)
        entry = msgspec.structs.replace(entry, **how)
        talk.ask(step, au.AlterUserScramCredentialsRequest(upsertions=(entry,)))

    def drop(step: str, mechanism: int, name: str = user) -> None:
        entry = au.ScramCredentialDeletion(name, mechanism)
        talk.ask(step, au.AlterUserScramCredentialsRequest(deletions=(entry,)))

    look("nobody", user)
    put("SHA-256", 1, 4096)
    look("there", user, until=lambda reply: reply.results[0].error_code == 0)
    put("too few iterations", 1, 4095)
    put("too many iterations", 1, 16385)
    put("no such mechanism", 9, 4096)
    put("SHA-512", 2, 8192, salted_password=b"p" * 64)
    look("both", user, until=lambda reply: len(reply.results[0].credential_infos) == 2)
    look("twice", user, user)
    both = au.AlterUserScramCredentialsRequest(
        deletions=(au.ScramCredentialDeletion(user, 1),),
        upsertions=(au.ScramCredentialUpsertion(user, 1, 4096, b"salt", b"p" * 32),),
    )
    talk.ask("deleted and put at once", both)
    put("empty name", 1, 4096, "")
    drop("no such mechanism is deleted", 9)
    drop("SHA-256 is deleted", 1)
    drop("SHA-512 is deleted", 2)
    look("gone", user, until=lambda reply: reply.results[0].error_code != 0)
    drop("deleted again", 1)


@dialogue(DescribeConfigsRequest, IncrementalAlterConfigsRequest)
def settings_of_groups(talk: Talk) -> None:
    group = talk.name("group")
    names = ("consumer.session.timeout.ms", "share.auto.offset.reset", "share.record.lock.duration.ms")
    talk.ask("all", describe(group, kind=GROUP_SETTINGS))
    talk.ask("set", change(group, ("consumer.session.timeout.ms", SET, "50000"), kind=GROUP_SETTINGS))
    talk.ask(
        "was set",
        describe(group, names, kind=GROUP_SETTINGS),
        until=lambda reply: "50000" in [each.value for each in reply.results[0].configs],
    )
    talk.ask("too short", change(group, ("consumer.session.timeout.ms", SET, "1"), kind=GROUP_SETTINGS))
    talk.ask("no such setting", change(group, ("retention.ms", SET, "1"), kind=GROUP_SETTINGS))
    talk.ask("no name", change("", ("consumer.session.timeout.ms", SET, "50000"), kind=GROUP_SETTINGS))
