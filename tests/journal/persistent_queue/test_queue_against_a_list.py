"""The queue compared to a plain list: any operations in any order, with closing and crash-like reopening."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tandemfeed.journal.format.layout import BLOCK_SIZE_MIN
from tandemfeed.journal.persistent_queue import NotInFlight, PersistentQueue
from tandemfeed.journal.persistent_queue.items.item_state import (
    CANCEL_ANSWERS,
    MOVES,
    ItemEvent,
    ItemState,
    Recycled,
    Unknown,
    diagram,
)

ITEMS = st.one_of(st.binary(max_size=100), st.integers(10_000, 90_000).map(bytes))
PLACES = st.integers(0, 1 << 30)


class QueueAgainstAList(RuleBasedStateMachine):
    """The model: every item ever put, and its state. Its moves come from the table in the manual."""

    @initialize(path_count=st.integers(1, 3))
    def open_first(self, path_count: int) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="queue-"))
        self.life, self.path_count = 0, path_count
        self.items: list[bytes] = []
        self.states: list[ItemState] = []
        self.queue = self._open()

    def _folders(self) -> list[Path]:
        return [self.root / str(self.life) / str(number) for number in range(self.path_count)]

    def _open(self) -> PersistentQueue:
        first, *more = self._folders()
        return PersistentQueue.open(first, more_paths=more, block_size=BLOCK_SIZE_MIN, checkpoint_interval_s=60.0)

    def _move(self, item_id: int, event: ItemEvent) -> None:
        self.states[item_id] = MOVES[self.states[item_id], event]

    def _pick(self, place: int) -> int:
        return place % (len(self.items) + 1)

    @rule(items=st.lists(ITEMS, max_size=40), one_by_one=st.booleans())
    def put(self, items: list[bytes], one_by_one: bool) -> None:
        first_id = len(self.items)
        ids = [self.queue.put(item) for item in items] if one_by_one else list(self.queue.put_many(items))
        assert ids == list(range(first_id, first_id + len(items)))
        self.items += items
        self.states += [ItemState.PENDING] * len(items)

    @rule(items=st.lists(ITEMS, max_size=5))
    def put_nowait(self, items: list[bytes]) -> None:
        futures = [self.queue.put_nowait(item) for item in items]
        for item, future in zip(items, futures, strict=True):
            assert future.result(30) == len(self.items)
            self.items.append(item)
            self.states.append(ItemState.PENDING)

    @rule(count=st.integers(1, 30))
    def get(self, count: int) -> None:
        for _ in range(count):
            oldest = next((place for place, state in enumerate(self.states) if state is ItemState.PENDING), None)
            entry = self.queue.get()
            assert entry == (None if oldest is None else (oldest, self.items[oldest]))
            if oldest is not None:
                self._move(oldest, ItemEvent.GET)

    @rule(place=PLACES, event=st.sampled_from([ItemEvent.DONE, ItemEvent.RELEASE]), durable=st.booleans())
    def settle(self, place: int, event: ItemEvent, durable: bool) -> None:
        item_id = self._pick(place)
        is_legal = item_id < len(self.items) and (self.states[item_id], event) in MOVES
        try:
            if event is ItemEvent.DONE:
                self.queue.done(item_id, durable=durable)
            else:
                self.queue.release(item_id)
            assert is_legal
            self._move(item_id, event)
        except NotInFlight:
            assert not is_legal

    @rule(durable=st.booleans())
    def settle_everything_in_flight(self, durable: bool) -> None:
        held = [place for place, state in enumerate(self.states) if state is ItemState.IN_FLIGHT]
        self.queue.done_many(held, durable=durable)
        for item_id in held:
            self._move(item_id, ItemEvent.DONE)

    @rule(place=PLACES)
    def cancel(self, place: int) -> None:
        item_id = self._pick(place)
        result = self.queue.cancel(item_id)
        assert result.item_id == item_id
        if item_id == len(self.items):
            assert isinstance(result, Unknown)
        elif isinstance(result, Recycled):
            assert self.states[item_id] in (ItemState.DELIVERED, ItemState.CANCELLED)
        else:
            assert type(result) is CANCEL_ANSWERS[self.states[item_id]]
            if self.states[item_id] is ItemState.PENDING:
                self._move(item_id, ItemEvent.CANCEL)

    @rule()
    def cancel_all(self) -> None:
        pending = [place for place, state in enumerate(self.states) if state is ItemState.PENDING]
        assert self.queue.cancel_all() == len(pending)
        for item_id in pending:
            self._move(item_id, ItemEvent.CANCEL)

    @rule()
    def checkpoint(self) -> None:
        self.queue.checkpoint()

    @rule(is_crash=st.booleans())
    def reopen(self, is_crash: bool) -> None:
        if is_crash:  # copies of the files, as left by a process that dies
            before = self._folders()
            self.life += 1
            for old, new in zip(before, self._folders(), strict=True):
                shutil.copytree(old, new)
        self.queue.close()
        self.queue = self._open()
        for item_id, state in enumerate(self.states):
            if state is ItemState.IN_FLIGHT:
                self._move(item_id, ItemEvent.CRASH)

    @invariant()
    def counts_agree(self) -> None:
        if hasattr(self, "queue"):
            pending, held = (self.states.count(state) for state in (ItemState.PENDING, ItemState.IN_FLIGHT))
            assert (self.queue.pending_count, self.queue.in_flight_count) == (pending, held)
            assert self.queue.active_count == pending + held == sum(self.queue.block_active_counts().values())

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            self.queue.close()
            shutil.rmtree(self.root)


TestQueueAgainstAList = QueueAgainstAList.TestCase
TestQueueAgainstAList.settings = settings(max_examples=100, stateful_step_count=40)


def test_the_manual_contains_the_table_of_states() -> None:
    manual = Path(__file__).parents[3] / "docs" / "persistent-queue.md"
    if not manual.exists():
        pytest.skip("the manual is not available")
    assert f"```mermaid\n{diagram()}\n```" in manual.read_text()
