"""The dead-letter journal: the encoding of its records, what is appended, and what happens on errors."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.adapter.conversion import CompiledConverter
from tandemfeed.adapter.conversion.dead_letters import SAMPLES_KEPT_MAX, DeadLetter, RefusedPacket
from tandemfeed.adapter.conversion.loading.converter_loading import load_converter
from tandemfeed.adapter.conversion.table.reasons import Reason
from tandemfeed.adapter.records import dead_letter_journal
from tandemfeed.adapter.records.dead_letter_journal import COLLECT_INTERVAL_NS, WAITING_MAX, DeadLetterJournal
from tandemfeed.adapter.records.dead_letter_record import DeadLetterRecord, decode_dead_letter, encode_dead_letter
from tandemfeed.feedcore.wire.source_packet import SOURCE_FRAME, SOURCE_FRAME_SIZE, encode_source_header
from tandemfeed.journal import Journal, Tailer
from tests.admin_server.cluster_files import EXAMPLES
from tests.small_disk import SmallDisk

WAIT_S = 60.0
RECORD = DeadLetterRecord(
    1, 2, 20_261_121, 3, 2**40, 1_700_000_000_000_000_001, 1_700_000_000_000_000_002, 65, "wrong_length", "trade",
    b"\x08\0\1\0long",
)  # fmt: skip
GOLDEN = bytes.fromhex(
    "54464431 0100 0200 01293501 03000000 0000000000010000 01002a36fe9c9717 02002a36fe9c9717 4100000000000000 0c00 0500"
    "77726f6e675f6c656e677468 7472616465 0800 0100 6c6f6e67"
)
u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))
records = st.builds(
    DeadLetterRecord, u16, u16, u32, u32, u64, u64, u64, u64,
    st.text(st.characters(max_codepoint=127), max_size=30), st.text(max_size=30), st.binary(max_size=200),
)  # fmt: skip


def test_the_encoding_of_a_dead_letter_never_changes() -> None:
    assert encode_dead_letter(RECORD).hex() == GOLDEN.hex()
    assert decode_dead_letter(GOLDEN) == RECORD


@given(records)
def test_every_record_decodes_to_what_was_encoded(record: DeadLetterRecord) -> None:
    assert decode_dead_letter(encode_dead_letter(record)) == record


@given(st.binary(max_size=80) | st.integers(0, 68).map(lambda size: GOLDEN[:size]))
def test_a_record_that_is_not_a_dead_letter_is_refused_with_a_reason(data: bytes) -> None:
    with pytest.raises(ValueError, match="dead letter"):
        decode_dead_letter(data)


def packet(frames: list[bytes], first: int) -> bytes:
    header = encode_source_header(
        feed_id=1, source_stream_id=1, message_count=len(frames), session=20261121, first_source_seq=first, sent_at_ns=5
    )
    return header + b"".join(frames)


def unknown(text: bytes) -> bytes:
    return SOURCE_FRAME.pack(SOURCE_FRAME_SIZE + len(text), 99) + text


def refuse(converter: CompiledConverter, first: int, count: int = 1) -> None:
    out = np.zeros(2_000, np.uint8)
    frames = [unknown(b"%04d" % number) for number in range(count)]
    assert converter.convert(packet(frames, first), 0, count, out, 0, 2_000).message_count == 0


def kept(folder: Path) -> list[DeadLetterRecord]:
    with Tailer(folder) as tailer:
        return [decode_dead_letter(record) for _, record in tailer]


@pytest.fixture
def converter() -> CompiledConverter:
    return load_converter(
        EXAMPLES / "source-format.xml", EXAMPLES / "converter-table.xml", EXAMPLES / "message-model.xml"
    )


def test_refused_messages_are_appended_with_channel_time_and_bytes(
    converter: CompiledConverter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandemfeed.adapter.records.dead_letter_journal.time.time_ns", lambda: 1_234)
    letters = DeadLetterJournal(tmp_path / "dead", 1, {7: converter})
    refuse(converter, 10, 2)
    letters.collect(0)
    assert not converter.refused
    letters.close()
    assert kept(tmp_path / "dead") == [
        DeadLetterRecord(1, 7, 20261121, 1, 10 + place, 5, 1_234, 99, "unknown_type", "", unknown(b"%04d" % place))
        for place in range(2)
    ]
    assert (letters.appended_count, letters.dropped_count) == (2, 0)


def test_a_restarted_process_appends_to_the_same_journal(converter: CompiledConverter, tmp_path: Path) -> None:
    for first in (1, 2):
        letters = DeadLetterJournal(tmp_path, 1, {1: converter})
        refuse(converter, first)
        letters.close()  # collects everything not yet collected
    assert [each.source_seq for each in kept(tmp_path)] == [1, 2]


def test_collections_have_an_interval_and_keep_only_the_newest_messages(
    converter: CompiledConverter, tmp_path: Path
) -> None:
    letters = DeadLetterJournal(tmp_path, 1, {1: converter})
    refuse(converter, 1)
    letters.collect(1_000)
    for first in range(2, 2 + 2 * SAMPLES_KEPT_MAX):
        refuse(converter, first)
        letters.collect(1_000 + COLLECT_INTERVAL_NS - 1)
    assert len(converter.refused) == SAMPLES_KEPT_MAX
    letters.collect(1_000 + COLLECT_INTERVAL_NS)
    assert not converter.refused
    letters.close()
    assert [each.source_seq for each in kept(tmp_path)] == [1, *range(2 + SAMPLES_KEPT_MAX, 2 + 2 * SAMPLES_KEPT_MAX)]


def test_a_journal_without_dead_letters_can_be_read(converter: CompiledConverter, tmp_path: Path) -> None:
    DeadLetterJournal(tmp_path / "dead", 1, {1: converter}).close()
    assert kept(tmp_path / "dead") == []
    assert (tmp_path / "dead").is_dir()


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [entry.message for entry in caplog.records if entry.levelno >= logging.ERROR]


def test_a_journal_that_cannot_be_opened_is_logged_once_and_counted(
    converter: CompiledConverter, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter_journal, "RETRY_INTERVAL_NS", 0)  # each collection tries to open the journal
    (tmp_path / "dead").write_text("a file in place of the folder")
    letters = DeadLetterJournal(tmp_path / "dead", 1, {1: converter})
    for first in range(3):
        refuse(converter, 1 + first)
        letters.collect(first * COLLECT_INTERVAL_NS)
    letters.close()
    assert (letters.appended_count, letters.dropped_count) == (0, 3)
    assert errors(caplog) == ["cannot store dead letters; the stream continues"]


def test_a_journal_that_another_process_appends_to_is_not_touched(
    converter: CompiledConverter, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Journal.open(tmp_path, block_size=dead_letter_journal.BLOCK_SIZE, exclusive=True):
        letters = DeadLetterJournal(tmp_path, 1, {1: converter})
        refuse(converter, 1)
        letters.close()
    assert letters.dropped_count == 1
    assert len(errors(caplog)) == 1


def test_a_full_disk_is_logged_once_and_appending_resumes_when_there_is_room(
    converter: CompiledConverter, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "tandemfeed.adapter.dead_letters")
    monkeypatch.setattr(dead_letter_journal, "RETRY_INTERVAL_NS", 0)
    disk = tmp_path / "disk"
    with SmallDisk(disk, "9m"):
        filler = disk / "filler"
        filler.write_bytes(bytes(7 << 20))
        letters = DeadLetterJournal(disk / "dead", 1, {1: converter})
        for first in range(3):
            refuse(converter, 1 + first)
            letters.collect(first * COLLECT_INTERVAL_NS)
        wait_until(lambda: letters.dropped_count == 3)
        filler.unlink()
        refuse(converter, 4)
        letters.collect(3 * COLLECT_INTERVAL_NS)
        wait_until(lambda: letters.appended_count == 1)
        said = [each.message for each in caplog.records]
        assert said == ["cannot store dead letters; the stream continues", "dead letters are being stored again"]
        refuse(converter, 5)
        letters.close()
        assert [each.source_seq for each in kept(disk / "dead")] == [4, 5]
    assert [each.message for each in caplog.records] == said  # once for each time that the disk was full


class BlockingConverter:
    """A converter that blocks while its refused messages are read, until the test releases it."""

    def __init__(self) -> None:
        self.refused: deque[RefusedPacket] = deque()
        self.let_go, self.is_asked = threading.Event(), threading.Event()

    def refuse(self) -> None:
        self.refused.append(RefusedPacket(b"", 0, np.zeros(4, np.int64)))

    def take_refused(self) -> list[RefusedPacket]:
        taken = list(self.refused)
        self.refused.clear()
        return taken

    def dead_letters_in(self, packets: Any) -> list[DeadLetter]:
        self.is_asked.set()
        assert self.let_go.wait(WAIT_S)
        return [DeadLetter(Reason.UNMAPPED, 1, 1, 1, 1, 1, "", b"") for _ in packets]


def test_a_blocked_thread_never_blocks_the_loop_and_dropped_messages_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    converter = BlockingConverter()
    letters = DeadLetterJournal(tmp_path, 1, {1: converter})
    converter.refuse()
    letters.collect(0)
    assert converter.is_asked.wait(WAIT_S)  # the thread is reading the first sample
    for number in range(1, WAITING_MAX + 4):
        converter.refuse()
        letters.collect(number * COLLECT_INTERVAL_NS)
    assert letters.dropped_count == 3 * 2  # two samples in each
    assert errors(caplog) == ["the dead-letter journal is too slow; dropping dead letters"]
    converter.let_go.set()
    letters.close()
    assert letters.appended_count == 1 + WAITING_MAX


def wait_until(is_so: Callable[[], bool]) -> None:
    pause, tries = threading.Event(), 0
    while not is_so():
        tries += 1
        assert tries < WAIT_S * 100
        pause.wait(0.01)
