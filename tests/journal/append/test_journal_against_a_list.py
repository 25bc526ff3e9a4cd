"""The journal compared to a plain list, under any order of appends, rolls, crashes and reads."""

from __future__ import annotations

import shutil
import tempfile
from bisect import bisect_left
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tandemfeed.journal import Journal, Tailer, Upkeep
from tandemfeed.journal.format.layout import BLOCK_SIZE_MIN

SECOND = 1_000_000_000
START = 1_800_000_000 * SECOND
KEY = bytes(range(32))
RECORD = st.one_of(st.binary(max_size=40), st.integers(1_000, 60_000).map(lambda size: b"\x07" * size))


class AgainstAList(RuleBasedStateMachine):
    """One or two appenders, compared to one list."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="journal-model-"))
        self.now_ns = START
        self.model: list[tuple[int, bytes, int]] = []  # index, record, time
        self.appenders: list[Journal] = []

    @initialize(is_sealed=st.booleans(), is_compressing=st.booleans())
    def begin(self, is_sealed: bool, is_compressing: bool) -> None:
        self.key = KEY if is_sealed else None
        self.upkeep = Upkeep(compress=is_compressing)
        self.appenders.append(self._open())
        self.follower = Tailer(self.folder, key=self.key)
        self.seen = 0

    def _open(self) -> Journal:
        return Journal.open(
            self.folder,
            block_size=BLOCK_SIZE_MIN,
            roll_cycle="SECONDLY",
            key=self.key,
            upkeep=self.upkeep,
            clock_ns=lambda: self.now_ns,
        )

    def _note(self, first: int, records: list[bytes]) -> None:
        self.model += [(first + place, record, self.now_ns) for place, record in enumerate(records)]

    @rule(record=RECORD, which=st.integers(0, 1))
    def append(self, record: bytes, which: int) -> None:
        self._note(self.appenders[which % len(self.appenders)].append(record), [record])

    @rule(records=st.lists(RECORD, min_size=1, max_size=20), which=st.integers(0, 1))
    def append_batch(self, records: list[bytes], which: int) -> None:
        self._note(self.appenders[which % len(self.appenders)].append_batch(records), records)

    @rule(count=st.integers(1, 50), width=st.integers(0, 300))
    def append_rows(self, count: int, width: int) -> None:
        rows = (np.arange(count * width, dtype=np.uint64) % 251).astype(np.uint8).reshape(count, width)
        self._note(self.appenders[0].append_rows(rows), [row.tobytes() for row in rows])

    @rule(step_ns=st.sampled_from([1, 1_000, SECOND // 3, SECOND, 5 * SECOND]))
    def advance_the_clock(self, step_ns: int) -> None:
        self.now_ns += step_ns

    @rule()
    def sync(self) -> None:
        self.appenders[0].sync()

    @precondition(lambda self: len(self.appenders) == 1)
    @rule()
    def open_a_second_appender(self) -> None:
        self.appenders.append(self._open())

    @rule()
    def close_and_reopen(self) -> None:
        self.appenders.pop().close()
        if not self.appenders:
            self.appenders.append(self._open())

    @rule()
    def die_and_reopen(self) -> None:
        """Simulate a killed process: release its locks, and leave the files unchanged."""
        dead = self.appenders.pop()
        dead._keeper.close()
        dead._control.close()
        if not self.appenders:
            self.appenders.append(self._open())

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def read_from_any_place(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.model) - 1))
        index, _, at_ns = self.model[place]
        expected = [entry[:2] for entry in self.model]
        with Tailer(self.folder, key=self.key) as tailer:
            assert tailer.to_index(index).read_many(5) == expected[place : place + 5]
            assert tailer.to_index(index).read_back() == (expected[place - 1] if place else None)
            first_at_that_time = bisect_left(self.model, at_ns, key=lambda entry: entry[2])
            assert tailer.to_time(at_ns).read() == expected[first_at_that_time]
            assert tailer.count_between(expected[0][0], index) == place
            batch = tailer.to_index(index).read_batch(7)
            assert batch is not None
            assert batch.records() == [record for _, record in expected[place : place + len(batch)]]

    @rule(count=st.integers(1, 30))
    def read_with_the_follower(self, count: int) -> None:
        expected = [entry[:2] for entry in self.model[self.seen : self.seen + count]]
        assert self.follower.read_many(count) == expected
        self.seen += len(expected)

    @invariant()
    def every_tailer_sees_the_list(self) -> None:
        if self.appenders and len(self.model) % 5 == 0:
            with Tailer(self.folder, key=self.key) as tailer:
                assert list(tailer) == [entry[:2] for entry in self.model]

    def teardown(self) -> None:
        for journal in self.appenders:
            journal.close()
        if self.appenders:
            with Tailer(self.folder, key=self.key) as tailer:
                tailer.to_end()
                assert list(iter(tailer.read_back, None)) == [entry[:2] for entry in self.model][::-1]
        shutil.rmtree(self.folder, ignore_errors=True)


TestAgainstAList = AgainstAList.TestCase
TestAgainstAList.settings = settings(max_examples=40, stateful_step_count=30)
