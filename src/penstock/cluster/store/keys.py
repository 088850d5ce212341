"""Where things stand in the metadata store.

    /{cluster}/{generation}/cluster_id
                           /adopted               in which generation the metadata are; absent: the first
                           /producer_ids          the first id that no block holds yet
                           /features              levels of what all members support, set for good
                           /cluster_secret        what nodes prove themselves to each other with
                           /members/{id}          lasting: which life of a node was admitted last, and from where
                           /nodes/{id}            leased: there while the node lives
                           /controller            leased: which node decides who leads
                           /tick                  written by the controller every second, for those who watch
                           /topics/{name}         id, partition count, first placement, overrides of settings
                           /partitions/{topic id}/{n}   who leads and who is in sync; absent: as first placed
                           /crons/{topic id}/{name}     which partition fires a named schedule
                           /removed-topics/{id}   deleted; there until its files are gone
                           /configs/nodes/{id}    settings of one node; `default` for all of them
                           /configs/groups/{name} settings of one group
                           /queues/{topic}/{group} what the owner of a queue asked for
                           /redrives/{id}         a redrive of dead letters, how far it came
                           /redrive-choices/{id}/{n}   what it moves, where that was picked by place
                           /acls/{digest}         a rule about who may do what
                           /users/{name}          what proves a user's passwords
                           /login_secret          what salts of users that do not exist are derived from

`generation` is the layout's: a later one may be written beside this one and switched to. Topic names hold no
slash, so a prefix that ends in one never catches a neighbour. Names of groups and users may hold anything, so they
stand there percent-encoded.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

import msgspec

from penstock.domain.queue.definition import QueueName

_ALL_NODES: Final = "default"


class KeySpace(msgspec.Struct, frozen=True):
    cluster: str = "penstock"
    generation: int = 1

    @property
    def root(self) -> str:
        return f"/{self.cluster}/{self.generation}/"

    @property
    def cluster_id(self) -> str:
        return f"{self.root}cluster_id"

    @property
    def adopted(self) -> str:
        return f"{self.root}adopted"

    @property
    def producer_ids(self) -> str:
        return f"{self.root}producer_ids"

    @property
    def features(self) -> str:
        return f"{self.root}features"

    @property
    def cluster_secret(self) -> str:
        return f"{self.root}cluster_secret"

    @property
    def members(self) -> str:
        return f"{self.root}members/"

    @property
    def controller(self) -> str:
        return f"{self.root}controller"

    @property
    def tick(self) -> str:
        return f"{self.root}tick"

    @property
    def partitions(self) -> str:
        return f"{self.root}partitions/"

    @property
    def crons(self) -> str:
        return f"{self.root}crons/"

    @property
    def nodes(self) -> str:
        return f"{self.root}nodes/"

    @property
    def topics(self) -> str:
        return f"{self.root}topics/"

    @property
    def removed_topics(self) -> str:
        return f"{self.root}removed-topics/"

    @property
    def node_configs(self) -> str:
        return f"{self.root}configs/nodes/"

    @property
    def group_configs(self) -> str:
        return f"{self.root}configs/groups/"

    @property
    def queues(self) -> str:
        return f"{self.root}queues/"

    @property
    def redrives(self) -> str:
        return f"{self.root}redrives/"

    @property
    def acls(self) -> str:
        return f"{self.root}acls/"

    @property
    def users(self) -> str:
        return f"{self.root}users/"

    @property
    def login_secret(self) -> str:
        return f"{self.root}login_secret"

    def is_secret(self, key: str) -> bool:
        """What proves passwords, and nodes: old values are not kept."""
        return key.startswith(self.users) or key in (self.login_secret, self.cluster_secret)

    def node(self, node_id: int) -> str:
        return f"{self.nodes}{node_id}"

    def node_of(self, key: str) -> int:
        return int(key.removeprefix(self.nodes))

    def member(self, node_id: int) -> str:
        return f"{self.members}{node_id}"

    def member_of(self, key: str) -> int:
        return int(key.removeprefix(self.members))

    def partition(self, topic_id: bytes, index: int) -> str:
        return f"{self.partitions}{topic_id.hex()}/{index}"

    def partition_of(self, key: str) -> tuple[bytes, int]:
        topic_id, _, index = key.removeprefix(self.partitions).partition("/")
        return bytes.fromhex(topic_id), int(index)

    def cron(self, topic_id: bytes, name: str) -> str:
        return f"{self.crons}{topic_id.hex()}/{quote(name, safe='')}"

    def cron_of(self, key: str) -> tuple[bytes, str]:
        topic_id, _, name = key.removeprefix(self.crons).partition("/")
        return bytes.fromhex(topic_id), unquote(name)

    def topic(self, name: str) -> str:
        return f"{self.topics}{name}"

    def node_config(self, node_id: int | None) -> str:
        return f"{self.node_configs}{_ALL_NODES if node_id is None else node_id}"

    def node_of_config(self, key: str) -> int | None:
        owner = key.removeprefix(self.node_configs)
        return None if owner == _ALL_NODES else int(owner)

    def group_config(self, group: str) -> str:
        return f"{self.group_configs}{quote(group, safe='')}"

    def group_of_config(self, key: str) -> str:
        return unquote(key.removeprefix(self.group_configs))

    def queue(self, name: QueueName) -> str:
        return f"{self.queues}{name.topic}/{quote(name.group, safe='')}"

    def queue_of(self, key: str) -> QueueName:
        topic, _, group = key.removeprefix(self.queues).partition("/")
        return QueueName(topic, unquote(group))

    def removed_topic(self, topic_id: bytes) -> str:
        return f"{self.removed_topics}{topic_id.hex()}"

    def removed_topic_of(self, key: str) -> bytes:
        return bytes.fromhex(key.removeprefix(self.removed_topics))

    def redrive(self, task_id: str) -> str:
        return f"{self.redrives}{task_id}"

    def redrive_choices(self, task_id: str) -> str:
        return f"{self.root}redrive-choices/{task_id}/"

    def acl(self, digest: str) -> str:
        return f"{self.acls}{digest}"

    def user(self, name: str) -> str:
        return f"{self.users}{quote(name, safe='')}"

    def user_of(self, key: str) -> str:
        return unquote(key.removeprefix(self.users))
