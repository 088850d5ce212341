"""What groups need to know of topics, as the broker knows it now."""

from __future__ import annotations

from functools import lru_cache

from penstock.base.patterns import compile_pattern
from penstock.broker.topic.broker import Broker
from penstock.domain.group.values import TopicFact
from penstock.domain.security import access
from penstock.domain.security.access import AllowAll, Authorizer, Operation, Principal
from penstock.domain.topic_rules import is_internal


class BrokerTopics:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        # Until a door says otherwise, everybody may see everything.
        self.authorizer: Authorizer = AllowAll()
        self._matching = lru_cache(maxsize=256)(self._match)

    @property
    def revision(self) -> int:
        return self._broker.generation

    def find(self, name: str) -> TopicFact | None:
        topic = self._broker.topic(name)
        return None if topic is None else TopicFact(topic.topic_id, topic.partition_count)

    def name_of(self, topic_id: bytes) -> str | None:
        topic = self._broker.topic_by_id(topic_id)
        return None if topic is None else topic.name

    def matching(self, expression: str, principal: str) -> tuple[str, ...] | None:
        return self._matching(expression, principal, self._broker.generation)

    def _match(self, expression: str, principal: str, _generation: int) -> tuple[str, ...] | None:
        matches = compile_pattern(expression)
        if matches is None:
            return None
        kind, _, name = principal.partition(":")
        member = Principal(kind, name)
        return tuple(
            topic.name
            for topic in self._broker.topics()
            if not is_internal(topic.name)
            and matches(topic.name)
            and self.authorizer.authorize(member, Operation.DESCRIBE, access.topic(topic.name))
        )
