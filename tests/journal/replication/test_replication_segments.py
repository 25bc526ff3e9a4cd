"""Reading a journal by whole segments: intact, damaged, encrypted, compressed, released."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemfeed.journal import Journal, Retention, Tailer, Upkeep
from tandemfeed.journal.format.block import blocks_in
from tandemfeed.journal.format.compression import compress_block
from tandemfeed.journal.format.layout import BLOCK_SIZE_MIN, COUNT_MASK, DATA_OFFSET, SEGMENT_SIZE
from tandemfeed.journal.replication.comparison import first_difference, is_same
from tandemfeed.journal.replication.segments import SegmentReader
from tandemfeed.journal.replication.wire.messages import Segment

BLOCK = BLOCK_SIZE_MIN
KEY = bytes(range(32))


def _all(reader: SegmentReader) -> list[Segment]:
    place = reader.place_at(0)
    return reader.read(place, 1 << 40) if place is not None else []


def _copy(source: Path, target: Path, key: bytes | None = None) -> None:
    """A follower's journal, segment by segment."""
    reader = SegmentReader(source)
    segments = _all(reader)
    start_ns = segments[0].appended_at_ns
    with Journal.open(target, block_size=BLOCK, exclusive=True, key=key, clock_ns=lambda: start_ns) as journal:
        for each in segments:
            index = journal.append_segment(
                each.body,
                each.count_and_flags,
                each.record_size,
                each.appended_at_ns,
                each.cycle,
                each.first_sequence,
            )
            assert index == each.first_index(reader.sequence_bits)


def _append_each_second(folder: Path, count: int) -> list[int]:
    """A record in each of several cycles."""
    now_ns, indices = [10**18], []
    with Journal.open(folder, roll_cycle="SECONDLY", block_size=BLOCK, clock_ns=lambda: now_ns[0]) as journal:
        for _ in range(count):
            indices.append(journal.append(b"a second"))
            now_ns[0] += 10**9
    return indices


@pytest.mark.parametrize("key", [None, KEY])
@settings(max_examples=15)
@given(
    batches=st.lists(st.lists(st.binary(max_size=6_000), min_size=1, max_size=40), min_size=1, max_size=25),
    size_max=st.integers(1, 100_000),
)
def test_segments_are_read_from_any_index_and_before_it(
    tmp_path_factory: pytest.TempPathFactory, key: bytes | None, batches: list[list[bytes]], size_max: int
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    with Journal.open(folder, block_size=BLOCK, key=key) as journal:
        firsts = [journal.append(each[0]) if len(each) == 1 else journal.append_batch(each) for each in batches]
        reader = SegmentReader(folder, key)
        bits = reader.sequence_bits
        found: list[Segment] = []
        place = reader.place_at(0)
        assert place is not None
        while more := reader.read(place, size_max):
            found += more
        assert [each.first_index(bits) for each in found] == firsts
        assert [each.count_and_flags & COUNT_MASK for each in found] == list(map(len, batches))
        assert found[-1].next_index(bits) == reader.end_index() == reader.next_index_seen() == journal.next_index
        for segment, batch in zip(found, batches, strict=True):
            first = segment.first_index(bits)
            for index in range(first, first + len(batch)):
                assert reader.segment_at(index) == segment
        assert reader.segment_at(reader.end_index()) is None
        for before, segment in zip([None, *found], found, strict=False):
            assert reader.segment_before(segment.first_index(bits)) == before
        assert reader.tail(3) == tuple(map(reader.digest, found[-3:]))
        journal.append(b"and what comes later")
        assert [each.body for each in reader.read(place, 1)] == [b"and what comes later"]
        reader.close()
    shutil.rmtree(folder)


def test_a_folder_without_a_journal_has_no_segments(tmp_path: Path) -> None:
    reader = SegmentReader(tmp_path / "none yet")
    assert (reader.place_at(0), reader.segment_at(0), reader.end_index(), reader.tail(4)) == (None, None, 0, ())


def test_segments_that_are_hidden_from_tailers_are_read(tmp_path: Path) -> None:
    with Journal.open(tmp_path, block_size=BLOCK) as journal:
        journal.show_until(journal.next_index)
        journal.append(b"hidden")
        assert list(Tailer(tmp_path)) == []
        assert [each.body for each in _all(SegmentReader(tmp_path))] == [b"hidden"]


def test_damage_leaves_a_gap_and_the_copy_has_the_same_indices(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    with Journal.open(source, block_size=BLOCK) as journal:
        indices = [journal.append(b"record %d" % number) for number in range(9)]
    path = blocks_in(source)[0].path
    data = bytearray(path.read_bytes())
    segment_size = SEGMENT_SIZE + 8
    for number in (0, 4):
        data[DATA_OFFSET + number * segment_size + SEGMENT_SIZE] ^= 1
    path.write_bytes(data)
    reader = SegmentReader(source)
    kept = [index for number, index in enumerate(indices) if number not in (0, 4)]
    assert [each.first_index(reader.sequence_bits) for each in _all(reader)] == kept
    for _ in range(2):  # the same after recovery
        if not target.exists():
            _copy(source, target)
        else:
            Journal.open(target, block_size=BLOCK).close()
        assert list(Tailer(target)) == list(Tailer(source))
        for index, record in Tailer(source):
            with Tailer(target) as tailer:
                assert tailer.read_at(index) == record


def test_a_copy_has_the_same_digests_under_another_key(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "source", block_size=BLOCK) as journal:
        journal.append_batch([b"a", b"bc"])
        journal.append(b"def")
    _copy(tmp_path / "source", tmp_path / "target", KEY)
    assert SegmentReader(tmp_path / "target", KEY).tail(4) == SegmentReader(tmp_path / "source").tail(4)


def test_compressed_blocks_are_read_and_released_ones_are_skipped(tmp_path: Path) -> None:
    indices = _append_each_second(tmp_path, 6)
    blocks = blocks_in(tmp_path)
    for each in blocks[:4]:
        compress_block(each.path)
    reader = SegmentReader(tmp_path)
    assert [each.first_index(reader.sequence_bits) for each in _all(reader)] == indices
    found = reader.segment_at(indices[0])
    assert found is not None
    for each in blocks_in(tmp_path)[:3]:
        each.path.unlink()
    reader = SegmentReader(tmp_path)
    assert is_same(reader, reader.digest(found)) is None
    assert first_difference(reader, indices[1], (reader.digest(found),)) is None


def test_a_segment_where_the_leader_rolled_without_one_differs(tmp_path: Path) -> None:
    first, second = _append_each_second(tmp_path, 2)
    reader = SegmentReader(tmp_path)
    stray = Segment(first >> reader.sequence_bits, 1, 10**18, 1, 3, b"own")
    assert is_same(reader, reader.digest(stray)) is False
    assert reader.cycle_end(first) == first + 1
    assert reader.cycle_end(second) == second + 1
    assert reader.cycle_end(second + (5 << reader.sequence_bits)) is not None
    tail = (reader.digest(_all(reader)[0]), reader.digest(stray))
    assert first_difference(reader, first + 2, tail) == first + 1


def test_a_journal_that_began_later_than_the_leaders_oldest_record_cannot_take_it(tmp_path: Path) -> None:
    first, second = _append_each_second(tmp_path, 2)
    reader = SegmentReader(tmp_path)
    assert first_difference(reader, first, ()) is None
    assert first_difference(reader, second, ()) == first
    assert first_difference(reader, second + 1, (reader.digest(_all(reader)[0]),)) == second
    assert first_difference(reader, second + 2, reader.tail(4)) == second + 1  # the other journal has more records


def test_after_retention_at_the_leader_a_copy_gets_the_remaining_records(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "source", block_size=BLOCK, upkeep=Upkeep(Retention(files=2))) as journal:
        for number in range(30):
            journal.append(bytes([number]) * 50_000)
    _copy(tmp_path / "source", tmp_path / "target")
    assert 0 < len(list(Tailer(tmp_path / "target"))) < 30
    assert list(Tailer(tmp_path / "target")) == list(Tailer(tmp_path / "source"))
