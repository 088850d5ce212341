"""A consumer of the simulated queue: diligent, slow, crashed or a thief, as its seed says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.domain.queue.commands import (
    Act,
    ConsumerGone,
    Outcome,
    QueueReply,
    Receive,
    Received,
    Settle,
    Settled,
    Settlement,
)
from penstock.domain.queue.values import ANY_DELIVERY, Limit, Ordering
from support.queue.world_check import HELD, RECEIPTS

if TYPE_CHECKING:
    from support.queue.world import World

# Offset and number of the delivery.
Held = tuple[int, int]


class SimConsumer:
    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self.held: list[Held] = []
        # Receipts that it should have thrown away.
        self._old: list[Held] = []
        self.is_parked = False

    def forget(self) -> None:
        """A crash: it comes back and knows nothing."""
        self._old += self.held
        self.held = []

    def act(self, kind: str = "") -> None:
        rng = self._world.rng
        if not kind:
            kind = rng.choices(("receive", "settle", "forget", "late"), (10, 12, 1, 1))[0]
        match kind:
            case "receive":
                self.receive(rng.choice((1, 3, 10, 30)))
            case "settle":
                self._settle(rng.randint(1, 8))
            case "forget":
                self.forget()
            case "late":
                self._settle_old(by_name=False)
            case "renew":
                self._renew()
            case "thief":
                self._settle_old(by_name=True)

    # ------------------------------------------------------------------ receiving

    def receive(self, count: int) -> None:
        world = self._world
        if self.is_parked and not world.is_quiet and world.rng.random() < 0.5:
            return
        command = Receive(self._name, count, world.found(), takes_whole_ranges=world.story.by_name)
        world.node.submit(command, self._received)

    def _received(self, reply: QueueReply, _decision: int, at_ms: int) -> None:
        assert isinstance(reply, Received), reply
        world = self._world
        is_keyed = world.story.config.ordering is Ordering.KEY
        # Where nothing was found but more is to be looked at, it looks again.
        has_seen_all = all(world.node.queue.cursor(lane) >= len(world.book.log) for lane in world.story.lanes)
        self.is_parked = not reply.deliveries and (has_seen_all or reply.limit is not Limit.NONE)
        for delivery in reply.deliveries:
            for offset in range(delivery.first, delivery.last + 1):
                world.book.deliver(
                    offset,
                    self._name,
                    number=reply.number,
                    count=delivery.count,
                    lane=delivery.lane,
                    until_ms=reply.until_ms,
                    at_ms=at_ms,
                    keyed=is_keyed,
                )
                self.held.append((offset, reply.number))

    # ------------------------------------------------------------------ settling

    def _settle(self, count: int) -> None:
        rng, story = self._world.rng, self._world.story
        chosen = [self.held.pop(rng.randrange(len(self.held))) for _number in range(min(count, len(self.held)))]
        items: list[Settlement] = []
        for offset, number in chosen:
            luck = rng.random()
            act, delay_ms = Act.ACCEPT, None
            if luck < story.reject_share:
                act = Act.REJECT
            elif luck < story.reject_share + story.release_share:
                act, delay_ms = Act.RELEASE, rng.choice((None, 0, 300))
            items.append(self._item(offset, number, act, delay_ms))
        self._submit(items, is_whole=False)

    def _item(self, offset: int, number: int, act: Act, delay_ms: int | None = None) -> Settlement:
        number = ANY_DELIVERY if self._world.story.by_name else number
        return Settlement(offset, offset, act, number, delay_ms, "because" if act is not Act.ACCEPT else "")

    def _renew(self) -> None:
        rng = self._world.rng
        if self.held:
            chosen = rng.sample(self.held, rng.randint(1, len(self.held)))
            self._submit(
                [self._item(*held, Act.RENEW, rng.choice((50, 400, 2_000))) for held in chosen], is_whole=False
            )

    def _settle_old(self, *, by_name: bool) -> None:
        """Late, repeated, or not its own."""
        world, rng = self._world, self._world.rng
        candidates = list(self._old)
        if by_name:
            candidates += [held for other in world.consumers if other is not self for held in other.held]
        if not candidates:
            return
        offset, number = rng.choice(candidates)
        act = rng.choice((Act.ACCEPT, Act.RELEASE, Act.REJECT, Act.RENEW))
        if by_name:
            items = [Settlement(offset, offset, act, rng.choice((ANY_DELIVERY, number, number + 1_000_000)), 0)]
            # With one of its own: a whole command fails whole.
            if self.held and rng.random() < 0.5:
                own = self.held[0]
                items.insert(0, Settlement(own[0], own[0], Act.RELEASE, own[1], 0))
            self._submit(items, is_whole=rng.random() < 0.5)
        else:
            self._submit([Settlement(offset, offset, act, number, 0)], is_whole=False, by_receipt=True)

    def _submit(self, items: list[Settlement], *, is_whole: bool, by_receipt: bool = False) -> None:
        world = self._world
        by_name = (world.story.by_name or is_whole) and not by_receipt
        consumer = self._name if by_name or any(item.number == ANY_DELIVERY for item in items) else None
        command = Settle(tuple(items), consumer, is_whole)
        name = world.node.submit(command, lambda reply, name, at_ms: self._settled(command, reply, name, at_ms))
        for item in items:
            if not world.book.is_holder(item.first, consumer=consumer, number=item.number, before=name):
                continue
            if item.act is Act.RENEW:
                world.book.fates[item.first].renewals[name] = world.now_ms + (item.delay_ms or 0)
            else:
                world.book.try_to_end(item.first, name, is_final=item.act in (Act.ACCEPT, Act.REJECT))

    def _settled(self, command: Settle, reply: QueueReply, name: int, at_ms: int) -> None:
        assert isinstance(reply, Settled), reply
        world = self._world
        is_done = all(outcome is Outcome.DONE for outcome in reply.outcomes) or not command.is_whole
        answers = list(zip(command.items, reply.outcomes, strict=True))
        settled = {item.first for item, outcome in answers if outcome is Outcome.DONE and is_done}
        for item, outcome in answers:
            if outcome is not Outcome.DONE or not is_done:
                # Unless another item of the command is about the same message.
                if item.first not in settled:
                    world.book.refuse(item.first, name)
                    if outcome is not Outcome.DONE and command.consumer is None:
                        self._check_refusal(item, name, at_ms)
                continue
            is_holder = world.book.is_holder(item.first, consumer=command.consumer, number=item.number, before=name)
            world.book.check(RECEIPTS, is_holder, f"{command.consumer} settled {item}")
            if item.act is not Act.RENEW:
                world.book.try_to_end(item.first, name, is_final=item.act in (Act.ACCEPT, Act.REJECT))
            self._note(item, name, at_ms)

    def _check_refusal(self, item: Settlement, name: int, at_ms: int) -> None:
        book = self._world.book
        if book.is_holder(item.first, consumer=None, number=item.number, before=name):
            is_held = book.must_be_held(item.first, is_accept=item.act is Act.ACCEPT, at_ms=at_ms)
            book.check(HELD, not is_held, f"{item}, {book.fates[item.first]}")

    def _note(self, item: Settlement, name: int, at_ms: int) -> None:
        book = self._world.book
        fate = book.fates[item.first]
        match item.act:
            case Act.ACCEPT:
                book.accept(item.first)
            case Act.RENEW:
                fate.renewals.pop(name, None)
                fate.until_ms = at_ms + (item.delay_ms or 0)
            case Act.RELEASE:
                fate.not_before_ms = at_ms + (item.delay_ms or 0)
                if fate.failed_first_ms is None:
                    fate.failed_first_ms = at_ms
            case _:
                fate.is_rejected = item.act is Act.REJECT
                if fate.failed_first_ms is None:
                    fate.failed_first_ms = at_ms

    def leave(self, *, is_counted: bool) -> None:
        """The door says that it is gone."""
        world = self._world
        world.node.sync()
        name = world.node.submit(ConsumerGone(self._name, is_counted=is_counted))
        stats = world.node.queue.stats()
        world.book.check(RECEIPTS, self._name not in dict(stats.consumers), f"{self._name} is gone: {stats}")
        for offset, fate in enumerate(world.book.fates):
            if fate.consumer == self._name and not fate.endings:
                world.book.try_to_end(offset, name, is_final=False)
                if not is_counted:
                    # The queue may count it no longer.
                    fate.times = max(fate.times - 1, 0)
        world.node.sync()
        self.forget()

    # ------------------------------------------------------------------ quiet

    def work_off(self) -> None:
        if self.held:
            items = [Settlement(offset, offset, Act.ACCEPT, number) for offset, number in self.held]
            self.held = []
            self._submit(items, is_whole=False)
        if not self.is_parked:
            self.receive(30)
