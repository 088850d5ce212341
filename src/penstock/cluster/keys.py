"""Where things stand in the metadata store.

    /{cluster}/{generation}/cluster_id
                           /producer_ids          the first id that no block holds yet
                           /nodes/{id}            leased: there while the node lives
                           /topics/{name}         id, partition count, overrides of settings
                           /configs/nodes/{id}    settings of one node; `default` for all of them

`generation` is the layout's: a later one may be written beside this one and switched to. Topic names hold no
slash, so a prefix that ends in one never catches a neighbour.
"""

from __future__ import annotations

from typing import Final

import msgspec

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
    def producer_ids(self) -> str:
        return f"{self.root}producer_ids"

    @property
    def nodes(self) -> str:
        return f"{self.root}nodes/"

    @property
    def topics(self) -> str:
        return f"{self.root}topics/"

    @property
    def node_configs(self) -> str:
        return f"{self.root}configs/nodes/"

    def node(self, node_id: int) -> str:
        return f"{self.nodes}{node_id}"

    def topic(self, name: str) -> str:
        return f"{self.topics}{name}"

    def node_config(self, node_id: int | None) -> str:
        return f"{self.node_configs}{_ALL_NODES if node_id is None else node_id}"

    def node_of_config(self, key: str) -> int | None:
        owner = key.removeprefix(self.node_configs)
        return None if owner == _ALL_NODES else int(owner)
