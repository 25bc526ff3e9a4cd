"""Appenders in several threads and processes: one order for all, and a lock that outlives its holder."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tandemfeed.journal import Journal, JournalClosed, JournalLocked, Tailer
from tandemfeed.journal.compiled.kernels import store_word
from tandemfeed.journal.format.block import BlockName, blocks_in
from tandemfeed.journal.format.control import Control
from tandemfeed.journal.format.layout import BLOCK_SIZE_MIN, CONTROL_NAME, END, LOCK, NEXT_SEQUENCE

BLOCK = BLOCK_SIZE_MIN
SPAWN = multiprocessing.get_context("spawn")


def _append_numbers(folder: Path, writer: int, count: int, pipe: Connection) -> None:
    with Journal.open(folder, block_size=BLOCK) as journal:
        pipe.send("ready")
        pipe.recv()
        for number in range(count):
            payload = b"%d %d " % (writer, number) + bytes(number % 700)
            if number % 7:
                journal.append(payload)
            else:
                journal.append_batch([payload])
        pipe.send("done")


def test_several_processes_append_in_one_order_that_every_tailer_sees(tmp_path: Path) -> None:
    writers, count = 3, 4_000
    pipes, children = [], []
    for writer in range(writers):
        mine, theirs = SPAWN.Pipe()
        child = SPAWN.Process(target=_append_numbers, args=(tmp_path, writer, count, theirs))
        child.start()
        pipes.append(mine)
        children.append(child)
    for pipe in pipes:
        assert pipe.recv() == "ready"
    for pipe in pipes:
        pipe.send("go")
    seen: list[list[int]] = [[] for _ in range(writers)]
    with Tailer(tmp_path) as tailer:
        indices = []
        while sum(map(len, seen)) < writers * count:
            assert tailer.wait(30)
            for index, record in tailer:
                writer, number = map(int, record.split(b" ")[:2])
                seen[writer].append(number)
                indices.append(index)
    for pipe, child in zip(pipes, children, strict=True):
        assert pipe.recv() == "done"
        child.join()
    assert seen == [list(range(count))] * writers
    assert indices == list(range(indices[0], indices[0] + writers * count))
    with Tailer(tmp_path) as tailer:
        assert [index for index, _ in tailer] == indices


def test_several_threads_append_while_blocks_roll(tmp_path: Path) -> None:
    with Journal.open(tmp_path, block_size=BLOCK) as journal:
        returned: list[dict[int, bytes]] = [{} for _ in range(4)]

        def run(writer: int) -> None:
            for number in range(1_500):
                record = b"%d %d" % (writer, number) + bytes(500)
                index = journal.append(record) if number % 5 else journal.append_batch([record, record])
                returned[writer][index] = record

        threads = [threading.Thread(target=run, args=(writer,)) for writer in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = dict(journal.records())
        assert len(found) == 4 * (1_200 + 600)
        for each in returned:
            assert all(found[index] == record for index, record in each.items())
            assert list(each) == sorted(each)


def _die_with_the_lock(folder: Path, pipe: Connection, stage: str) -> None:
    journal = Journal.open(folder, block_size=BLOCK)
    journal.append(b"from the one that dies")
    control, block = journal._control, journal.chain.current
    control.lock(lambda: None)
    end = control.word(END)
    if stage == "half a segment":
        block.view[end + 8 : end + 40] = os.urandom(32)
    elif stage == "published, words not updated":
        former = end, control.word(NEXT_SEQUENCE)
        control.unlock()
        journal.append(b"published")
        control.lock(lambda: None)
        control.set_word(END, former[0])
        control.set_word(NEXT_SEQUENCE, former[1])
    elif stage == "rolled, unmarked":
        journal.chain._begin(block.header.cycle, 1, control.word(NEXT_SEQUENCE), BLOCK)
    elif stage == "marked, words not updated":
        journal.chain._begin(block.header.cycle, 1, control.word(NEXT_SEQUENCE), BLOCK)
        store_word(block.address + end + 8, journal.chain.current.ordinal)
        store_word(block.address + end, 0xFFFF_FFFF)
    pipe.send(stage)
    signal.pause()


@pytest.mark.parametrize(
    ("stage", "more"),
    [
        ("nothing done", []),
        ("half a segment", []),
        ("published, words not updated", [b"published"]),
        ("rolled, unmarked", []),
        ("marked, words not updated", []),
    ],
)
@pytest.mark.parametrize("is_alone", [False, True])
def test_a_dead_holders_lock_is_taken_over_and_the_journal_repaired(
    tmp_path: Path, stage: str, more: list[bytes], is_alone: bool
) -> None:
    survivor = Journal.open(tmp_path, block_size=BLOCK)
    survivor.append(b"before")
    if is_alone:
        survivor.close()
    mine, theirs = SPAWN.Pipe()
    child = SPAWN.Process(target=_die_with_the_lock, args=(tmp_path, theirs, stage))
    child.start()
    assert mine.recv() == stage
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    if is_alone:
        survivor = Journal.open(tmp_path, block_size=BLOCK)
    last = survivor.append(b"after")
    expected = [b"before", b"from the one that dies", *more, b"after"]
    assert [record for _, record in survivor.records()] == expected
    assert survivor.read(last) == b"after"
    survivor.close()
    with Tailer(tmp_path) as tailer:
        assert [record for _, record in tailer] == expected


def test_a_slot_reused_with_its_dead_owners_lock_does_not_block_other_appenders(tmp_path: Path) -> None:
    with Journal.open(tmp_path, block_size=BLOCK) as first:
        first.append(b"one")
        mine, theirs = SPAWN.Pipe()
        child = SPAWN.Process(target=_die_with_the_lock, args=(tmp_path, theirs, "half a segment"))
        child.start()
        mine.recv()
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        with Journal.open(tmp_path, block_size=BLOCK) as second:  # gets the dead appender's slot with the lock
            assert second._control.word(LOCK) == 0
            second.append(b"two")
            first.append(b"three")
            assert [record for _, record in first.records()] == [b"one", b"from the one that dies", b"two", b"three"]


def test_a_forked_child_must_reopen_the_journal_and_does_not_keep_its_parents_slot(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    journal = Journal.open(tmp_path, block_size=BLOCK)
    journal.append(b"parent")
    mine, theirs = fork.Pipe()
    release = fork.Event()

    def child() -> None:
        try:
            journal.append(b"child")
        except JournalClosed as refused:
            theirs.send(str(refused))
        release.wait(30)
        os._exit(0)

    process = fork.Process(target=child)
    process.start()
    assert "forked" in mine.recv()
    journal.append(b"parent again")
    journal.close()
    Journal.open(tmp_path, block_size=BLOCK, exclusive=True).close()  # the living child has no lock
    release.set()
    process.join()
    assert [record for _, record in Tailer(tmp_path)] == [b"parent", b"parent again"]


def _hold(folder: Path, pipe: Connection) -> None:
    with Journal.open(folder, block_size=BLOCK) as journal:
        journal._control.lock(lambda: None)
        pipe.send("held")
        pipe.recv()
        journal._control.unlock()


def test_an_appender_waits_for_a_living_holder_and_names_it_after_the_time_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Journal.open(tmp_path, block_size=BLOCK) as journal:
        mine, theirs = SPAWN.Pipe()
        child = SPAWN.Process(target=_hold, args=(tmp_path, theirs))
        child.start()
        mine.recv()
        monkeypatch.setattr("tandemfeed.journal.format.control.LOCK_TIMEOUT_S", 0.05)
        with pytest.raises(JournalLocked, match=str(child.pid)):
            journal.append(b"in vain")
        monkeypatch.setattr("tandemfeed.journal.format.control.LOCK_TIMEOUT_S", 30.0)
        done: list[int] = []
        waiter = threading.Thread(target=_passing_result_to(lambda: journal.append(b"at last"), done.append))
        waiter.start()
        mine.send("let go")
        waiter.join(30)
        child.join()
        assert journal.read(done[0]) == b"at last"


def _passing_result_to(work: Callable[[], int], receive: Callable[[int], None]) -> Callable[[], None]:
    return lambda: receive(work())


def test_all_slots_can_be_in_use_and_one_more_appender_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandemfeed.journal.format.control.SLOT_COUNT", 3)
    journals = [Journal.open(tmp_path, block_size=BLOCK) for _ in range(3)]
    with pytest.raises(JournalLocked, match=str(os.getpid())):
        Journal.open(tmp_path, block_size=BLOCK)
    for place, journal in enumerate(journals):
        journal.append(b"%d" % place)
        journal.close()
    with Control(tmp_path / CONTROL_NAME, writable=False) as control:
        assert not control.has_others()


def test_two_processes_that_create_a_journal_concurrently_get_the_same_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[Journal] = []

    def list_and_let_another_open(folder: Path) -> list[BlockName]:
        names = blocks_in(folder)
        if not others and not names:
            monkeypatch.setattr("tandemfeed.journal.store.blocks_in", blocks_in)
            others.append(Journal.open(folder, block_size=BLOCK))
        return names

    monkeypatch.setattr("tandemfeed.journal.store.blocks_in", list_and_let_another_open)
    with Journal.open(tmp_path, block_size=BLOCK) as journal:
        journal.append(b"one")
        others[0].append(b"two")
        assert [record for _, record in journal.records()] == [b"one", b"two"]
    others[0].close()
