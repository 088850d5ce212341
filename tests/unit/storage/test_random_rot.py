"""Logs that rot anywhere, again and again, between crashes, scrubs and repairs: what is whole is served, always."""

from __future__ import annotations

from random import Random

import pytest

from penstock.base.clock import ManualClock
from penstock.codec.batch.header import walk_headers
from penstock.storage.config import LogConfig, StorageConfig
from penstock.storage.errors import Damage, Damaged
from penstock.storage.log.read_plan import ReadPlan
from penstock.storage.repair.check import repair, verify
from penstock.storage.repair.scrubber import SegmentScrub
from penstock.storage.segment.throttle import Throttle
from support.storage.faulty_files import CrashMode, FaultyFiles
from support.storage.log_desk import ROOT, LogDesk

STEPS = 60
# No checksum covers the leader epoch, and nothing depends on it; nor the lowest byte of the base offset, of which
# nobody can tell that it is wrong where the batches before and behind it have rotted too.
NOT_COVERED = frozenset({7, *range(12, 16)})


class RandomRot(LogDesk):
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = FaultyFiles(Random(seed))
        interval_bytes = self.random.choice([64, 300, 4096])
        settings = StorageConfig(free_bytes_min=0, sync_threads=1, index_interval_bytes=interval_bytes)
        config = LogConfig(segment_bytes=self.random.choice([600, 2000, 1 << 20]))
        super().__init__(self.disk, settings=settings, config=config)
        # By offset: the bytes, the next offset, the segment and the position in it.
        self.written: dict[int, tuple[bytes, int, str, int]] = {}
        self.rotten: set[int] = set()

    def step(self) -> None:
        steps = [self.write, self.rot, self.scrub, self.checkpoint, self.kill, self.cut_power, self.stop, self.mend]
        self.random.choices(steps, [30, 6, 2, 4, 3, 3, 2, 1])[0]()

    def write(self) -> None:
        offset = self.log.log_end
        assert offset not in self.written, "an offset was given out twice"
        values = [self.random.randbytes(self.random.randrange(1, 200)) for _ in range(self.random.randint(1, 3))]
        data = self.append(*values)
        segment = self.log.segments[-1]
        self.written[offset] = (data, self.log.log_end, segment.path, segment.size - len(data))
        self.sync()

    def rot(self) -> None:
        whole = sorted(self.written.keys() - self.rotten)
        if not whole:
            return
        offset = self.random.choice(whole)
        data, _, path, position = self.written[offset]
        byte = self.random.randrange(self.random.choice([27, 61, len(data)]))
        if byte not in NOT_COVERED:
            self.disk.flip_bit(path, (position + byte) * 8 + self.random.randrange(8))
            self.rotten.add(offset)

    def scrub(self) -> None:
        throttle = Throttle(ManualClock(), lambda _seconds: None, bytes_per_second=1 << 40)
        for segment in self.log.segments:
            SegmentScrub(self.log, segment, self.log.readable_part(segment), throttle).run()

    def checkpoint(self) -> None:
        self.store.checkpoint_now(every_log=True)

    def kill(self) -> None:
        self.disk.crash(CrashMode.KILL)
        self.begin_anew(clean=False)

    def cut_power(self) -> None:
        self.disk.crash(self.random.choice(list(CrashMode)))
        self.begin_anew(clean=False)

    def stop(self) -> None:
        self.begin_anew(clean=True)

    def mend(self) -> None:
        self.store.close()
        repair(ROOT, files=self.disk)
        assert [report.problems for report in verify(ROOT, files=self.disk)] in ([], [()])
        self.begin_anew(clean=False)
        assert self.log.damage is None
        # Others stand where they stood, and those that had rotted stand nowhere.
        self.written = {}
        self.rotten = set()

    def begin_anew(self, *, clean: bool) -> None:
        self.restart(clean=clean)
        lost = {offset for offset in self.written if offset >= self.log.log_end}
        # The one exception: a rotten end that nobody knew of looks like the torn end of a write.
        assert lost <= self.rotten, f"lost {sorted(lost)}, rotten {sorted(self.rotten)}"
        self.rotten -= lost
        for offset in lost:
            del self.written[offset]

    def check(self) -> None:
        """Everything is read, from the disk, as a reader does it who steps over what is damaged."""
        served: dict[int, bytes] = {}
        offset = self.log.log_start
        while offset < self.log.readable_end:
            plan = self.log.plan_read(offset, bytes_max=self.random.choice([1, 300, 1 << 20]))
            found = plan.load() if isinstance(plan, ReadPlan) else plan
            damage = found.damage if isinstance(found, Damaged) else found
            if isinstance(damage, Damage):
                assert offset < damage.offset_end <= self.log.log_end
                offset = damage.offset_end
                continue
            assert isinstance(found, memoryview)
            assert found, f"nothing is found at offset {offset}"
            for position, header in walk_headers(found):
                served[header.base_offset] = bytes(found[position : position + header.size_bytes])
                assert offset < header.next_offset
                offset = header.next_offset
        whole = self.written.keys() - self.rotten
        assert {place: served.get(place) for place in whole} == {place: self.written[place][0] for place in whole}


@pytest.mark.parametrize("seed", range(60))
def test_what_has_not_rotted_is_served_and_keeps_its_offset(seed: int) -> None:
    desk = RandomRot(seed)
    for _ in range(STEPS):
        desk.step()
    desk.check()
