"""In which generation the metadata of a cluster are. A new one begins when somebody says that nodes go on with an older
or an empty store (`penstock metadata adopt`): revisions of one generation say nothing about another's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.values import decode

FIRST_GENERATION: Final = 1


class Generation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of `adopted`. Fields are only ever added, each with a default."""

    number: int = FIRST_GENERATION
    began_ms: int = 0
    # Ids of topics that are known from data directories alone: every node that has some of it adds what it has.
    found: tuple[str, ...] = ()


def generation_of(values: Mapping[str, bytes], keys: KeySpace) -> Generation:
    value = values.get(keys.adopted)
    return Generation() if value is None else decode(keys.adopted, value, Generation)
