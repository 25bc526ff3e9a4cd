"""Inspection and verification of journals, intact and damaged."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemfeed.journal import Journal, NamedPosition, Tailer
from tandemfeed.journal.check.completeness import RecordMissing, RecordOutOfOrder, compare, digest
from tandemfeed.journal.check.findings import (
    BytesDamaged,
    CheckpointWrong,
    ControlWrong,
    EndMarkMissing,
    FileMissing,
    FileUnreadable,
    Finding,
    IndexEntryWrong,
    SegmentNotOpened,
    SequenceJumps,
    SourceGap,
    SourceGoesBack,
    TailWrong,
    TimeGoesBack,
)
from tandemfeed.journal.check.inspection import DamagedStretch, EndMark, OpenEnd, SegmentView, records_of, segments
from tandemfeed.journal.check.journal_files import JournalFiles
from tandemfeed.journal.check.source_sequence import ContinuityCheck, NumberGoesBack, NumbersMissing, parse_rule
from tandemfeed.journal.check.verification import Verification
from tandemfeed.journal.format.block import Block
from tandemfeed.journal.format.layout import (
    CHECKPOINT_OFFSETS,
    CONTROL_NAME,
    CRC_FROM,
    DATA_OFFSET,
    END,
    HEADER_INDEX_OFFSET,
    SEGMENT,
    SEGMENT_SIZE,
    TAIL_SIZE,
)
from tests.journal.journals_made import BEGIN_NS, BLOCK, KEY, STEP_NS, Appender, damage, files_of, made, numbered

STEP = 48  # between segments: 32 bytes and a record of at most 16


def sixteen(count: int) -> list[bytes]:
    """Records of sixteen bytes, so that each segment has STEP bytes."""
    return [b"record %09d" % number for number in range(count)]


def findings(folder: Path, *, key: bytes | None = None, rule: str | None = None) -> list[Finding]:
    with JournalFiles(folder) as files:
        return list(Verification(files, key=key, rule=(rule and parse_rule(rule)) or None).findings())


def reseal(path: Path, offset: int, change: Callable[[bytearray], None]) -> None:
    """Change a segment and update its CRC."""
    block = Block(path, writable=True)
    length = SEGMENT.unpack_from(block.view, offset)[0]
    segment = bytearray(block.view[offset : offset + length])
    change(segment)
    crc = block.header.salt
    crc = crc_of_bytes(crc, bytes(segment[CRC_FROM:]))
    struct.pack_into("<I", segment, 4, crc)
    block.view[offset : offset + length] = segment


def crc_of_bytes(running: int, data: bytes) -> int:
    """The running CRC after these bytes, bit by bit, with the polynomial of RFC 3720."""
    for byte in data:
        running ^= byte
        for _ in range(8):
            running = running >> 1 ^ (0x82F63B78 if running & 1 else 0)
    return running


def test_segments_and_records_are_listed_as_they_were_appended(tmp_path: Path) -> None:
    with Journal.open(tmp_path, block_size=BLOCK) as journal:
        journal.append(b"one")
        journal.append_batch([b"a", b"", b"ccc"])
        journal.append_rows(np.arange(4, dtype="<u2"))
    with JournalFiles(tmp_path) as files:
        (name,) = files.names()
        block = files.open(name)
        assert block is not None
        *found, end = segments(block)
        assert [each.record_count for each in found if isinstance(each, SegmentView)] == [1, 3, 4]
        records = [records_of(block, each) for each in found if isinstance(each, SegmentView)]
        assert records == [[b"one"], [b"a", b"", b"ccc"], [b"\0\0", b"\1\0", b"\2\0", b"\3\0"]]
        assert end == OpenEnd(files.words().end, 8)


def test_an_encrypted_segment_is_listed_without_its_key_and_decrypted_with_it(tmp_path: Path) -> None:
    made(tmp_path, numbered(3), key=KEY)
    with JournalFiles(tmp_path) as files:
        block = files.open(files.names()[0])
        assert block is not None
        first = next(segments(block))
        assert isinstance(first, SegmentView)
        assert first.is_sealed
        assert records_of(block, first) is None
        assert records_of(block, first, bytes(32)) is None
        assert records_of(block, first, KEY) == [b"record 0"]


def test_inspection_shows_files_appenders_the_lock_and_positions_of_named_tailers(tmp_path: Path) -> None:
    indices = made(tmp_path, numbered(25))
    NamedPosition(tmp_path / "tailers" / "audit.position").store(indices[20])
    with JournalFiles(tmp_path) as files:
        summaries = [files.summary(name) for name in files.names()]
        assert [each.record_count for each in summaries if each is not None] == [10, 10, 5]
        last = summaries[-1]
        assert last is not None
        assert (last.first_at_ns, last.last_at_ns) == (BEGIN_NS + 20 * STEP_NS, BEGIN_NS + 24 * STEP_NS)
        assert files.named_positions() == {"audit": indices[20]}
        assert files.appenders() == []
        assert files.lock_holder() is None
        with Appender(tmp_path) as appender:
            assert [each.pid for each in files.appenders()] == [appender.process.pid]
        assert files.appenders() == []


@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize("key", [None, KEY])
def test_an_intact_journal_has_no_findings(tmp_path: Path, is_compressed: bool, key: bytes | None) -> None:
    made(tmp_path, numbered(35), key=key, is_compressed=is_compressed)
    assert findings(tmp_path) == []
    assert findings(tmp_path, key=key) == []


def test_a_journal_with_many_parts_and_long_records_has_no_findings(tmp_path: Path) -> None:
    with Journal.open(tmp_path, block_size=BLOCK) as journal:
        for number in range(60):
            journal.append_batch([bytes([number]) * size for size in (1, 5_000, 17, 0, 9_000)])
        journal.append(bytes(3 * BLOCK))
        for _ in range(5_000):
            journal.append(b"short")
        assert findings(tmp_path) == []
    assert len(files_of(tmp_path)) > 4
    assert findings(tmp_path) == []


def test_a_journal_whose_appender_was_killed_has_no_findings(tmp_path: Path) -> None:
    with Appender(tmp_path) as appender:
        for number in range(50):
            appender.append(f"record {number}")
        appender.process.kill()
        appender.process.wait()
    assert findings(tmp_path) == []


def test_a_check_beside_a_running_appender_has_no_findings(tmp_path: Path) -> None:
    with Appender(tmp_path) as appender:
        for number in range(200):
            appender.append(f"record {number}")
            if number % 10 == 0:
                assert findings(tmp_path) == []


def test_a_damaged_segment_is_found_with_its_lost_records(tmp_path: Path) -> None:
    indices = made(tmp_path, sixteen(30))
    second = files_of(tmp_path)[1]
    damage(second, DATA_OFFSET + 3 * STEP + 40)
    assert findings(tmp_path) == [
        BytesDamaged(second, DATA_OFFSET + 3 * STEP, indices[13], DATA_OFFSET + 4 * STEP, 1),
    ]


def test_damage_over_several_segments_and_zeros_within_the_data_are_each_one_finding(tmp_path: Path) -> None:
    indices = made(tmp_path, sixteen(30))
    first, second, third = files_of(tmp_path)
    damage(first, DATA_OFFSET + 2 * STEP + 20, b"\xa5" * (3 * STEP))
    damage(second, DATA_OFFSET + 5 * STEP, bytes(STEP))
    damage(third, DATA_OFFSET + 8 * STEP, bytes(2 * STEP))
    assert findings(tmp_path) == [
        BytesDamaged(first, DATA_OFFSET + 2 * STEP, indices[2], DATA_OFFSET + 6 * STEP, 4),
        BytesDamaged(second, DATA_OFFSET + 5 * STEP, indices[15], DATA_OFFSET + 6 * STEP, 1),
        BytesDamaged(third, DATA_OFFSET + 8 * STEP, indices[28], None, 2),
    ]


@settings(max_examples=60)
@given(st.data())
def test_any_changed_byte_of_any_segment_is_found_and_named(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    made(folder, sixteen(25))
    place = data.draw(st.integers(0, 24))
    path = files_of(folder)[place // 10]
    begin = DATA_OFFSET + place % 10 * STEP
    damage(path, begin + data.draw(st.integers(0, STEP - 1)), bytes([data.draw(st.integers(0, 255))]))
    found = findings(folder)
    assert [(type(each), each.path) for each in found] == [(BytesDamaged, path)]
    assert found[0].offset == begin


def test_a_truncated_foreign_or_missing_file_is_found(tmp_path: Path) -> None:
    indices = made(tmp_path, sixteen(50))
    first, second, third, fourth, _ = files_of(tmp_path)
    third.unlink()
    assert findings(tmp_path) == [FileMissing(second, DATA_OFFSET + 10 * STEP, indices[19] + 1, third.name)]
    fourth.write_bytes(fourth.read_bytes()[:100_000])
    damage(first, 20)
    kinds = [(type(each), each.path) for each in findings(tmp_path)]
    assert kinds == [(FileUnreadable, first), (FileUnreadable, fourth)]


def test_missing_oldest_files_are_no_finding_but_a_missing_newest_one_is(tmp_path: Path) -> None:
    made(tmp_path, sixteen(50))
    files_of(tmp_path)[0].unlink()
    assert findings(tmp_path) == []
    newest = files_of(tmp_path)[-1]
    newest.unlink()
    (found,) = findings(tmp_path)
    assert isinstance(found, FileMissing)
    assert found.missing == newest.name


def test_a_missing_end_mark_and_a_wrong_tail_are_found(tmp_path: Path) -> None:
    made(tmp_path, sixteen(30))
    first, second, _ = files_of(tmp_path)
    damage(first, DATA_OFFSET + 10 * STEP, bytes(8))
    damage(second, BLOCK - TAIL_SIZE + 16)
    kinds = [(type(each), each.path) for each in findings(tmp_path)]
    assert kinds == [(EndMarkMissing, first), (TailWrong, second)]


def test_a_wrong_entry_of_the_sparse_index_is_found(tmp_path: Path) -> None:
    indices = made(tmp_path, sixteen(30))
    first, second, third = files_of(tmp_path)
    (place,) = struct.unpack_from("<Q", first.read_bytes(), HEADER_INDEX_OFFSET)
    damage(first, place, b"\x07")
    damage(second, place, bytes(24))
    damage(third, place + 24 * 2_000, struct.pack("<QQQ", 1, 2, 3 * DATA_OFFSET))
    found = findings(tmp_path)
    assert [(type(each), each.path.name, each.offset) for each in found] == [
        (IndexEntryWrong, first.name, place),
        (IndexEntryWrong, second.name, place),
    ]  # the third is after the written data, as if an appender had died during an append
    assert [each.index for each in found] == [indices[0], indices[10]]


def test_a_wrong_checkpoint_is_found(tmp_path: Path) -> None:
    made(tmp_path, sixteen(20))
    first, second = files_of(tmp_path)
    damage(first, CHECKPOINT_OFFSETS[1] + 8)
    block = Block(second, writable=True)
    block.write_checkpoint(DATA_OFFSET + STEP, 2, 0)
    block.write_checkpoint(DATA_OFFSET + 5, 1, 0)
    assert [(type(each), each.path) for each in findings(tmp_path)] == [
        (CheckpointWrong, first), (CheckpointWrong, second), (CheckpointWrong, second)
    ]  # fmt: skip


def test_a_control_file_that_contradicts_the_blocks_is_found(tmp_path: Path) -> None:
    made(tmp_path, sixteen(20))
    damage(tmp_path / CONTROL_NAME, END, struct.pack("<Q", DATA_OFFSET + 2 * STEP))
    (found,) = findings(tmp_path)
    assert isinstance(found, ControlWrong)


def test_sequence_gaps_and_decreasing_times_are_found_even_if_every_crc_matches(tmp_path: Path) -> None:
    indices = made(tmp_path, sixteen(20))
    first, second = files_of(tmp_path)
    offset = DATA_OFFSET + 4 * STEP
    reseal(first, offset, lambda segment: struct.pack_into("<Q", segment, 8, 6))
    reseal(second, offset, lambda segment: struct.pack_into("<Q", segment, 16, BEGIN_NS))
    kinds = [(type(each), each.path, each.offset, each.index) for each in findings(tmp_path)]
    assert (SequenceJumps, first, offset, indices[6]) in kinds
    assert (TimeGoesBack, second, offset, indices[14]) in kinds


def test_an_altered_encrypted_segment_with_a_valid_crc_is_found_with_the_key(tmp_path: Path) -> None:
    indices = made(tmp_path, sixteen(5), key=KEY)
    (path,) = files_of(tmp_path)

    def change(segment: bytearray) -> None:
        segment[SEGMENT_SIZE + 20] ^= 1

    reseal(path, DATA_OFFSET, change)
    assert findings(tmp_path) == []
    assert findings(tmp_path, key=KEY) == [SegmentNotOpened(path, DATA_OFFSET, indices[0])]


def test_a_tailer_returns_exactly_the_records_that_verification_finds_intact(tmp_path: Path) -> None:
    indices = made(tmp_path, sixteen(30))
    for path in files_of(tmp_path):
        damage(path, DATA_OFFSET + 6 * STEP + 35)
    lost = {each.index for each in findings(tmp_path)}
    assert lost == {indices[6], indices[16], indices[26]}
    with Tailer(tmp_path) as tailer:
        assert [index for index, _ in tailer] == [index for index in indices if index not in lost]


def test_source_sequence_numbers_are_checked_per_stream(tmp_path: Path) -> None:
    numbers = [(1, 10), (2, 7), (1, 11), (1, 14), (2, 8), (2, 8), (1, 15)]
    indices = made(tmp_path, [struct.pack("<HxxQ", *each) for each in numbers] + [b"other"])
    (path,) = files_of(tmp_path)
    found = findings(tmp_path, rule="4:u64@0:u16")
    assert found == [
        SourceGap(path, DATA_OFFSET + 3 * STEP, indices[3], 1, 12, 14),
        SourceGoesBack(path, DATA_OFFSET + 5 * STEP, indices[5], 2, 9, 8),
    ]
    assert "missing: 12 to 13 (2)" in str(found[0])


@pytest.mark.parametrize(
    ("rule", "record", "expected"),
    [
        ("0:u64", struct.pack("<Q", 2**63), (0, 2**63)),
        ("1:u16be@0:u8", b"\x05\x01\x02", (5, 258)),
        ("0:i8", b"\xff", (0, -1)),
        ("2:u32le", b"\0\0\1\0\0", None),
        (r"seq=(\d+)", b"a seq=17 b", ("", 17)),
        (r"(?P<stream>\w+)/(?P<seq>\d+)", b"XN/9", ("XN", 9)),
        (r"seq=(\d+)", b"\xff none", None),
    ],
)
def test_a_rule_extracts_stream_and_number(rule: str, record: bytes, expected: tuple[int | str, int] | None) -> None:
    assert parse_rule(rule).find(memoryview(record)) == expected


@pytest.mark.parametrize("text", ["", "8:u65", "no group", "(", "8:u64@2"])
def test_an_invalid_rule_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(ValueError, match="OFFSET:TYPE"):
        parse_rule(text)


def test_a_stream_may_begin_anywhere_and_must_then_increase_by_one() -> None:
    check = ContinuityCheck()
    assert [check.add("a", number) for number in (5, 6, 9, 7, 10)] == [
        None, None, NumbersMissing("a", 7, 9), NumberGoesBack("a", 10, 7), None
    ]  # fmt: skip


def compared(here: list[bytes], other: list[bytes]) -> list[RecordMissing | RecordOutOfOrder]:
    digests = [np.array([digest(each) for each in records], np.uint64) for records in (here, other)]
    return list(compare(digests[0], np.arange(len(here)), digests[1], 1_000 + np.arange(len(other))))


def test_missing_records_do_not_make_later_ones_look_missing() -> None:
    beats = [b"beat"] * 20
    here = [b"a", *beats[:9], b"b", b"extra", *beats[:9], b"d"]
    other = [b"a", *beats[:10], b"b", b"c", *beats[:9], b"d"]
    missing = compared(here, other)
    assert len(missing) == 2
    assert {each.index for each in missing} >= {1_012}
    assert compared(here, here) == []
    assert compared([], [b"x"]) == [RecordMissing(1_000)]
    assert compared([b"x"], []) == []


def test_records_out_of_order_are_distinguished_from_missing_ones() -> None:
    assert compared([b"a", b"c", b"d", b"b"], [b"a", b"b", b"c", b"d"]) == [RecordOutOfOrder(1_001, 3)]


@given(st.lists(st.sampled_from([b"a", b"b", b"c", b"d", b"e"]), max_size=40), st.data())
def test_exactly_the_removed_records_are_reported_as_missing(other: list[bytes], data: st.DataObject) -> None:
    kept = data.draw(st.lists(st.booleans(), min_size=len(other), max_size=len(other)))
    here = [record for record, is_kept in zip(other, kept, strict=True) if is_kept]
    missing = compared(here, other)
    assert all(isinstance(each, RecordMissing) for each in missing)
    left = [record for place, record in enumerate(other) if 1_000 + place not in {each.index for each in missing}]
    assert left == here


def test_damage_up_to_the_end_of_a_file_is_reported_without_an_end(tmp_path: Path) -> None:
    made(tmp_path, sixteen(20))
    path = files_of(tmp_path)[0]
    damage(path, DATA_OFFSET + 9 * STEP, b"\xa5" * (STEP + 16))
    block = Block(path, writable=False)
    *_, last = segments(block)
    assert last == DamagedStretch(DATA_OFFSET + 9 * STEP, None, 9, None)
    assert not isinstance(last, EndMark)
