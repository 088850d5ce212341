"""Bugs planted into the transaction machines, with the story that brings each out and the invariant that catches it."""

from __future__ import annotations

from typing import Final

import msgspec

from support.planted_bugs import Bug

_DOMAIN: Final = "penstock.domain"
WORLD: Final = "support.transaction.world"
# Everything that holds a name from a module which may be changed.
ANEW: Final = (f"{_DOMAIN}.transaction.", f"{_DOMAIN}.log.aborted_", WORLD)

WHOLE: Final = "readers see committed transactions whole"
COMMITTED_ALONE: Final = "readers see committed records alone"
ENDS: Final = "every transaction ends"
IN_TIME: Final = "no transaction outlives its timeout"
TRUTH: Final = "a producer is told the truth about its transaction"
LISTED: Final = "a fetch lists the aborted transactions in it"
PARTITION_KEPT: Final = "restart keeps a partition's state"


class TransactionBug(msgspec.Struct, frozen=True):
    bug: Bug
    # Of the stories in `world`.
    story: str


def _bug(
    name: str, module: str, right: str, wrong: str, *, story: str, caught_by: str, first_seed: int = 0
) -> TransactionBug:
    return TransactionBug(Bug(name, f"{_DOMAIN}.{module}", right, wrong, caught_by, first_seed), story)


_REFUSE_WHILE_PREPARED: Final = """    if metadata.is_prepared:
        return refuse(TransactionProblem.CONCURRENT_TRANSACTIONS)
"""

COORDINATOR_BUGS: Final = (
    _bug(
        "an abort by the coordinator leaves the epoch as it was",
        "transaction.state",
        """        producer_epoch=metadata.producer_epoch + 1,
        last_producer_epoch=metadata.producer_epoch if may_go_on else NO_EPOCH,""",
        """        producer_epoch=metadata.producer_epoch,
        last_producer_epoch=metadata.producer_epoch if may_go_on else NO_EPOCH,""",
        story="everything",
        caught_by=ENDS,
    ),
    _bug(
        "two ends of one millisecond have the same name",
        "transaction.state",
        "    return max(now_ms, metadata.update_ms + 1)",
        "    return now_ms",
        story="late reports",
        caught_by=WHOLE,
    ),
    _bug(
        "version 2 ends a transaction and leaves the epoch as it was",
        "transaction.state",
        "    raises_epoch = version >= VERSION_TWO",
        "    raises_epoch = False",
        story="repeated messages",
        caught_by=ENDS,
    ),
    _bug(
        "a producer begins while markers are still being written",
        "transaction.rules",
        _REFUSE_WHILE_PREPARED + "    if has_id",
        "    if has_id",
        story="heirs",
        caught_by=WHOLE,
        first_seed=34,
    ),
    _bug(
        "partitions are added while markers are still being written",
        "transaction.rules",
        _REFUSE_WHILE_PREPARED + "    problem = _problem_of_producer",
        "    problem = _problem_of_producer",
        story="everything",
        caught_by=COMMITTED_ALONE,
    ),
    _bug(
        "a zombie may abort what its successor does",
        "transaction.rules",
        "        return command.producer_epoch == metadata.last_producer_epoch and metadata.state is not"
        " TransactionState.ONGOING",
        "        return True",
        story="heirs",
        caught_by="a fenced producer aborts nothing of its successor",
    ),
    _bug(
        "a new producer passes for the one before it",
        "transaction.rules",
        "        last_epoch = NO_EPOCH if is_new else metadata.producer_epoch",
        "        last_epoch = metadata.producer_epoch",
        story="heirs",
        caught_by="a fenced producer does not come back",
    ),
    _bug(
        "the epoch of who asks is not looked at",
        "transaction.rules",
        "    if command.producer_epoch != metadata.producer_epoch:\n        return TransactionProblem.PRODUCER_FENCED",
        "    if command.producer_epoch < 0:\n        return TransactionProblem.PRODUCER_FENCED",
        story="heirs",
        caught_by="a fenced producer commits nothing",
    ),
    _bug(
        "a repeated end is confirmed whatever it asks for",
        "transaction.rules",
        "    if is_repeat and metadata.state is not _completed(command):",
        "    if is_repeat and metadata.is_prepared:",
        story="short of time",
        caught_by=TRUTH,
    ),
    _bug(
        "a partition is vouched for that is in no transaction",
        "transaction.rules",
        "for partition in command.partitions if partition not in metadata.partitions)",
        "for partition in command.partitions if partition.partition < 0)",
        story="late answers",
        caught_by=ENDS,
    ),
    _bug(
        "a report about markers counts for whatever transaction is being ended",
        "transaction.machine",
        " or metadata.update_ms != command.ended_ms:",
        ":",
        story="late reports",
        caught_by=COMMITTED_ALONE,
    ),
    _bug(
        "the first marker completes the transaction",
        "transaction.machine",
        "        if unmarked:\n",
        "        if unmarked and not command.partitions:\n",
        story="moving coordinator",
        caught_by=WHOLE,
        first_seed=65,
    ),
    _bug(
        "a restarted coordinator forgets the aborts that it had decided",
        "transaction.machine",
        "            for transactional_id in sorted(self._unmarked)",
        "            for transactional_id in sorted(self._unmarked) if self._transactions[transactional_id].is_commit",
        story="disks",
        caught_by=ENDS,
    ),
    _bug(
        "nothing times out",
        "transaction.machine",
        "            return metadata.start_ms + metadata.timeout_ms",
        "            return None",
        story="everything",
        caught_by=IN_TIME,
    ),
    _bug(
        "an alarm is not moved to an earlier time",
        "transaction.deadlines",
        "        if alarm is None or deadline_ms < alarm:",
        "        if alarm is None:",
        story="everything",
        caught_by=IN_TIME,
    ),
)

PARTITION_BUGS: Final = (
    _bug(
        "a later transaction slips into the one before",
        "transaction.partition",
        "return _ADMITTED if header.producer_epoch == state.producer_epoch else TransactionOpen()",
        "return _ADMITTED",
        story="repeated messages",
        caught_by=ENDS,
    ),
    _bug(
        "nobody has to vouch for a batch",
        "transaction.partition",
        "            return VerificationNeeded()",
        "            return _ADMITTED",
        story="everything",
        caught_by=ENDS,
    ),
    _bug(
        "an answer of the coordinator is believed after the marker",
        "transaction.partition",
        """        producer_id, offset = header.producer_id, header.base_offset
        self._verifications.clear(producer_id)
""",
        """        producer_id, offset = header.producer_id, header.base_offset
""",
        story="late answers",
        caught_by=ENDS,
    ),
    _bug(
        "a marker with nothing to end does not stop who waits for the coordinator",
        "transaction.partition",
        "and not state.is_ongoing and not self._verifications.is_open(producer_id):",
        "and not state.is_ongoing:",
        story="late answers",
        caught_by=ENDS,
        first_seed=114,
    ),
    _bug(
        "an old coordinator's marker is taken",
        "transaction.partition",
        "        if coordinator_epoch < state.coordinator_epoch:",
        "        if coordinator_epoch < 0:",
        story="moving coordinator",
        caught_by=COMMITTED_ALONE,
    ),
    _bug(
        "a late marker of version 2 ends the next transaction",
        "transaction.partition",
        "        is_late = version >= VERSION_TWO and state.is_ongoing and producer_epoch == state.producer_epoch",
        "        is_late = False",
        story="repeated messages",
        caught_by=COMMITTED_ALONE,
    ),
    _bug(
        "a marker of an older epoch is taken",
        "transaction.partition",
        "        if producer_epoch < state.producer_epoch or is_late:",
        "        if is_late:",
        story="repeated messages",
        caught_by=COMMITTED_ALONE,
    ),
    _bug(
        "a marker counts before it is readable",
        "transaction.partition",
        "            self._unreadable.append((offset, first_offset))\n            if not",
        "            if not",
        story="disks",
        caught_by="the last stable offset never goes back",
    ),
    _bug(
        "the order of open transactions is lost in a snapshot",
        "transaction.partition",
        "for first_offset, producer_id in sorted(ongoing)}",
        "for first_offset, producer_id in sorted(ongoing, reverse=True)}",
        story="disks",
        caught_by=PARTITION_KEPT,
    ),
    _bug(
        "a cut log keeps the markers that it lost",
        "transaction.partition",
        "        while self._unreadable and self._unreadable[-1][0] >= log_end:\n            self._unreadable.pop()\n",
        "",
        story="disks",
        caught_by="the last stable offset gets as far as it can",
        first_seed=110,
    ),
    _bug(
        "a cut log forgets who was there before",
        "transaction.partition",
        "            if before is not None:\n                self._producers[producer_id] = before\n",
        "",
        story="disks",
        caught_by=PARTITION_KEPT,
    ),
    _bug(
        "an abort is noted with a last stable offset above an open transaction",
        "transaction.partition",
        "stable_offset = next(iter(self._ongoing.values()), offset + 1)",
        "stable_offset = offset + 1",
        story="everything",
        caught_by=LISTED,
    ),
    _bug(
        "the search for aborted transactions stops at the end of the fetch",
        "log.aborted_index",
        "            if self._stable_offsets[place] >= end:",
        "            if self._last_offsets[place] >= end:",
        story="everything",
        caught_by=LISTED,
    ),
    _bug(
        "deletion drops an aborted transaction whose marker is still there",
        "log.aborted_index",
        "        count = bisect_left(self._last_offsets, log_start)",
        "        count = bisect_left(self._first_offsets, log_start)",
        story="everything",
        caught_by=LISTED,
    ),
)

BUGS: Final = COORDINATOR_BUGS + PARTITION_BUGS
