"""What an adapter's records promise of the disk: after power failures, and after a flush that the disk refused."""

from __future__ import annotations

import random
import stat
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tandemfeed.adapter.conversion.dead_letters import DeadLetter, RefusedPacket
from tandemfeed.adapter.conversion.table.reasons import Reason
from tandemfeed.adapter.documents import save_document
from tandemfeed.adapter.records import dead_letter_journal, output_journal
from tandemfeed.adapter.records.dead_letter_journal import DeadLetterJournal
from tandemfeed.adapter.records.dead_letter_record import decode_dead_letter
from tandemfeed.adapter.records.output_journal import OutputJournal
from tandemfeed.feedcore.documents.versions import DocumentKind, VersionedDocument
from tandemfeed.feedcore.replica.channel_state import ChannelSnapshot
from tandemfeed.feedcore.wire.lineage import EpochStart, Lineage
from tandemfeed.feedcore.wire.output_packet import OutputFlag
from tandemfeed.feedcore.wire.position import MessageStreamState
from tandemfeed.journal import JournalFailed, Tailer
from tests.adapter.records.test_output_journal import BLOCK, packet, replayed
from tests.losing_disk import FailsAt, losing_disk

WAIT_S = 60.0
SESSION = 20_261_121
FIRST = Lineage((EpochStart(1, 1, 1),))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "adapter"
    made.mkdir()
    return made


def modes(folder: Path) -> set[tuple[bool, int]]:
    """(is a folder, mode) of everything below a folder, itself included."""
    return {
        (each.is_dir(), stat.S_IMODE(each.stat().st_mode)) for each in (folder, *folder.rglob("*")) if each.exists()
    }


def snapshot(next_input_seq: int) -> ChannelSnapshot:
    position = MessageStreamState(1, next_input_seq, next_input_seq, {1: next_input_seq})
    return ChannelSnapshot(1, position, FIRST, b"x" * 3_000, ())


# ---- power failures ----


def test_what_was_flushed_of_the_output_journal_survives_a_power_failure(folder: Path, tmp_path: Path) -> None:
    with losing_disk(folder, tmp_path / "kept") as disk:
        journal = OutputJournal(folder / "journal", block_size=BLOCK)
        for first in range(1, 400, 4):  # rolls
            journal.append(packet(1, first, 4))
        journal.save(1, SESSION, snapshot(401))
        journal.flush()
        journal.append(packet(1, 401, 4))
        image = disk.image(tmp_path / "image")
        journal.close()
    journal = OutputJournal(image / "journal", block_size=BLOCK)
    assert [first for _, first, _ in replayed(journal, 1, 1, 1_000)] == list(range(1, 400, 4))
    ((found, runs),) = journal.resumable(1, SESSION)
    assert (found.position.next_input_seq, runs) == (401, [])
    journal.close()


@pytest.mark.parametrize("seed", range(40))
def test_after_a_power_failure_the_output_journal_has_all_that_was_flushed_and_nothing_that_was_not_appended(
    folder: Path, tmp_path: Path, seed: int
) -> None:
    """Packets, states and commits, over rolls. Of what was not flushed any part may be there, in its order."""
    chance = random.Random(seed)
    appended: list[tuple[int, int]] = []  # (epoch, first input_seq) as replays must give them
    saved: set[int] = set()
    flushed = 0
    with losing_disk(folder, tmp_path / "kept") as disk:
        journal = OutputJournal(folder / "journal", block_size=BLOCK)
        first = 1
        for _ in range(chance.randrange(20, 400)):
            match chance.randrange(12):
                case 0:
                    journal.save(1, SESSION, snapshot(first))
                    saved.add(first)
                case 1:
                    journal.flush()
                    flushed = len(appended)
                case 2:
                    journal.append(packet(1, first, 3, 0)._replace(flags=OutputFlag.PROVISIONAL))
                    journal.commit_provisional(1, 2, first, first + 3)
                    appended.append((2, first))
                    first += 3
                case _:
                    journal.append(packet(1, first, 3, 2))
                    appended.append((2, first))
                    first += 3
        image = disk.image(tmp_path / "image", chance)
        journal.close()
    assert not journal.failure
    journal = OutputJournal(image / "journal", block_size=BLOCK)
    found = [(epoch, begin) for epoch, begin, _ in replayed(journal, 1, 1, first + 1)]
    states = journal.resumable(1, SESSION)
    journal.close()
    assert found[:flushed] == appended[:flushed]
    assert found == [each for each in appended if each in set(found)]
    for state, runs in states:
        assert state.position.next_input_seq in saved
        assert {run.first_input_seq for run in runs} <= {begin for _, begin in appended}


def test_a_flush_comes_by_itself_if_something_was_appended_and_only_then(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_journal, "FLUSH_INTERVAL_S", 0.01)
    flushes: list[int] = []
    came = threading.Semaphore(0)
    flush = OutputJournal.flush

    def counted(journal: OutputJournal) -> None:
        flush(journal)
        flushes.append(1)
        came.release()

    monkeypatch.setattr(OutputJournal, "flush", counted)
    journal = OutputJournal(folder / "journal", block_size=BLOCK)
    journal.start_upkeep()
    for first in (1, 4):
        journal.append(packet(1, first, 3))
        assert came.acquire(timeout=WAIT_S)
    assert not came.acquire(timeout=0.2)
    journal.close()
    assert len(flushes) == 2


# ---- refused flushes ----


class Watched:
    """An output journal on a disk that refuses flushes."""

    def __init__(self, folder: Path) -> None:
        self.failures: list[str] = []
        self.journal = OutputJournal(folder / "journal", block_size=BLOCK, on_failed=self.failures.append)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_output_journal_that_the_disk_refused_to_flush_has_failed_and_says_so_once(
    folder: Path, tmp_path: Path, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    with losing_disk(folder, tmp_path / "kept") as disk:
        watched = Watched(folder)
        journal = watched.journal
        disk.fault = FailsAt(number, count=None)
        first = 1
        while not journal.failure:
            journal.append(packet(1, first, 3))
            journal.flush()
            first += 3
        kept = replayed(journal, 1, 1, first)
        for _ in range(5):
            journal.append_all([packet(1, first, 3), packet(1, first + 3, 3)])
            journal.flush()
        assert journal.is_failing
        assert journal.dropped_count == 10
        assert journal.last_dropped_unix_ns
        assert replayed(journal, 1, 1, first + 10) == kept  # what is there is served as before
        assert watched.failures == [journal.failure]
        assert "disk refused a flush" in journal.failure
        with pytest.raises(JournalFailed):
            journal.close()
    failed = "the output journal has failed; not journaling packets until a restart"
    assert [entry.message for entry in caplog.records if entry.message == failed] == [failed]
    journal = OutputJournal(folder / "journal", block_size=BLOCK)  # a restart, with the disk mended
    assert replayed(journal, 1, 1, first + 10) == kept
    assert not journal.is_failing
    journal.close()


def test_a_restart_after_a_refused_flush_makes_what_was_kept_durable(folder: Path, tmp_path: Path) -> None:
    with losing_disk(folder, tmp_path / "kept") as disk:
        watched = Watched(folder)
        disk.fault = FailsAt(1, count=1)
        watched.journal.append(packet(1, 1, 3))
        watched.journal.flush()
        with pytest.raises(JournalFailed):
            watched.journal.close()
        OutputJournal(folder / "journal", block_size=BLOCK).flush()
        image = disk.image(tmp_path / "image")
    journal = OutputJournal(image / "journal", block_size=BLOCK)
    assert replayed(journal, 1, 1, 10) == [(1, 1, 3)]
    journal.close()


def test_the_failure_of_the_flushers_thread_is_a_failure_of_the_journal(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_journal, "FLUSH_INTERVAL_S", 0.01)
    monkeypatch.setattr(OutputJournal, "flush", lambda _journal: 1 // 0)
    failed = threading.Event()
    journal = OutputJournal(folder / "journal", block_size=BLOCK, on_failed=lambda _reason: failed.set())
    journal.start_upkeep()
    journal.append(packet(1, 1, 3))
    assert failed.wait(WAIT_S)
    assert "its thread output-flush failed (ZeroDivisionError" in journal.failure
    journal.append(packet(1, 4, 3))
    assert journal.dropped_count == 1
    journal.close()


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), InterruptedError(4, "Interrupted system call")])
def test_an_append_that_the_system_refuses_once_is_counted_and_journaling_resumes_after_a_pause(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    now_ns = 1
    journal = OutputJournal(folder / "journal", block_size=BLOCK, clock_ns=lambda: now_ns)
    append, refused = journal._journal.append, [error]

    def failing(record: bytes) -> int:
        if refused:
            raise refused.pop()
        return append(record)

    monkeypatch.setattr(journal._journal, "append", failing)
    journal.append(packet(1, 1, 3))
    assert (journal.dropped_count, journal.is_failing, journal.failure) == (1, True, "")
    journal.append(packet(1, 4, 3))
    assert journal.dropped_count == 2  # not tried again for every packet
    now_ns += output_journal.RETRY_WHEN_FULL_NS
    journal.append(packet(1, 7, 3))
    assert not journal.is_failing
    assert replayed(journal, 1, 1, 10) == [(1, 7, 3)]
    journal.close()


class Refusing:
    """A converter with one refused message at a time."""

    def __init__(self) -> None:
        self.refused: deque[RefusedPacket] = deque()

    def refuse(self) -> None:
        self.refused.append(RefusedPacket(b"", 0, np.zeros(4, np.int64)))

    def take_refused(self) -> list[RefusedPacket]:
        taken, self.refused = list(self.refused), deque()
        return taken

    @staticmethod
    def dead_letters_in(packets: list[RefusedPacket]) -> list[DeadLetter]:
        return [DeadLetter(Reason.UNMAPPED, 1, 1, 1, 1, 1, "", b"") for _ in packets]


@pytest.fixture
def letters(folder: Path) -> Iterator[tuple[DeadLetterJournal, Refusing]]:
    converter = Refusing()
    made = DeadLetterJournal(folder / "dead", 1, {1: converter})
    yield made, converter
    made.close()


def test_dead_letters_are_stored_again_after_the_disk_refused_a_flush(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter_journal, "RETRY_INTERVAL_NS", 0)
    converter = Refusing()
    appended = threading.Semaphore(0)
    append = DeadLetterJournal._append

    def noted(letters: DeadLetterJournal, records: list[bytes]) -> None:
        append(letters, records)
        appended.release()

    monkeypatch.setattr(DeadLetterJournal, "_append", noted)
    with losing_disk(folder, tmp_path / "kept") as disk:
        letters = DeadLetterJournal(folder / "dead", 1, {1: converter})
        assert appended.acquire(timeout=WAIT_S)  # opened
        disk.fault = FailsAt(1, count=1)
        assert letters._journal is not None
        with pytest.raises(JournalFailed):
            letters._journal.sync()
        for number in range(3):
            converter.refuse()
            letters.collect(number * dead_letter_journal.COLLECT_INTERVAL_NS)
            assert appended.acquire(timeout=WAIT_S)
        letters.close()
    assert (letters.appended_count, letters.dropped_count) == (2, 1)
    with Tailer(folder / "dead") as tailer:
        assert len([decode_dead_letter(record) for _, record in tailer]) == 2


# ---- who may read ----


def test_an_adapters_records_are_for_its_user_only(folder: Path, letters: tuple[DeadLetterJournal, Refusing]) -> None:
    made, converter = letters
    converter.refuse()
    made.close()
    journal = OutputJournal(folder / "journal", block_size=BLOCK)
    journal.append(packet(1, 1, 3))
    journal.close()
    document = VersionedDocument(DocumentKind.CONVERTER_TABLE, "t", b"<t/>", {"lists/m.csv": b"a,b\n"})
    save_document(document, folder / "documents" / "version")
    for each in ("journal", "dead", "documents"):
        assert modes(folder / each) <= {(False, 0o600), (True, 0o700)}, each


def test_a_document_is_whole_or_absent_after_a_power_failure(folder: Path, tmp_path: Path) -> None:
    document = VersionedDocument(DocumentKind.CONVERTER_TABLE, "t", b"<t/>", {"lists/m.csv": b"a,b\n"})
    with losing_disk(folder, tmp_path / "kept") as disk:
        saved = save_document(document, folder / "documents" / "version")
        flushed = len(disk.flushes)
        assert save_document(document, folder / "documents" / "version") == saved
        assert len(disk.flushes) == flushed  # it is there already
        image = disk.image(tmp_path / "image")
    found = image / "documents" / "version"
    assert (found / "converter-table.xml").read_bytes() == b"<t/>"
    assert (found / "lists" / "m.csv").read_bytes() == b"a,b\n"
