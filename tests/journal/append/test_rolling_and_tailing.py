"""Tailers on journals that roll: cycles, times, directions, names, batches."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import numpy as np
import pytest
import zstandard

from tandemfeed.journal import Journal, NoSuchRecord, RecordTooLong, Retention, Tailer, Upkeep
from tandemfeed.journal.format.block import COMPRESSED_SUFFIX, Block, BlockName, blocks_in
from tandemfeed.journal.format.compression import compress_block, open_to_read
from tandemfeed.journal.format.layout import BLOCK_SIZE_MIN, CONTROL_NAME, IS_CLEAN
from tandemfeed.journal.read import library

BLOCK = BLOCK_SIZE_MIN
SECOND = 1_000_000_000
START = 1_800_000_000 * SECOND


class Clock:
    """A wall clock that the test sets."""

    def __init__(self) -> None:
        self.now_ns = START

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


def _fill(folder: Path, clock: Clock, seconds: int, each: int = 5, **options: object) -> list[tuple[int, bytes]]:
    """A journal with secondly cycles, some of them idle."""
    written = []
    with Journal.open(folder, block_size=BLOCK, roll_cycle="SECONDLY", clock_ns=clock, **options) as journal:  # type: ignore[arg-type]
        for second in range(seconds):
            clock.now_ns = START + (second + second // 3) * SECOND
            for number in range(each):
                clock.now_ns += 1_000
                record = b"second %d record %d" % (second, number)
                written.append((journal.append(record), record))
    return written


def test_each_cycle_is_a_file_and_idle_cycles_have_none(tmp_path: Path, clock: Clock) -> None:
    written = _fill(tmp_path, clock, 7)
    cycles = [name.cycle for name in blocks_in(tmp_path)]
    assert cycles == [START // SECOND + second + second // 3 for second in range(7)]
    assert [index >> 30 for index, _ in written] == [cycle for cycle in cycles for _ in range(5)]
    assert [index & 0xFFFF for index, _ in written] == [0, 1, 2, 3, 4] * 7
    assert list(Tailer(tmp_path)) == written


def test_when_the_clock_goes_back_the_cycle_stays_and_recorded_times_never_decrease(
    tmp_path: Path, clock: Clock
) -> None:
    with Journal.open(tmp_path, block_size=BLOCK, roll_cycle="SECONDLY", clock_ns=clock) as journal:
        clock.now_ns = START + 5 * SECOND
        journal.append(b"late")
        clock.now_ns = START
        journal.append(b"early")
        batch = journal.tailer().read_batch(10)
        assert batch is not None
        assert batch.appended_at_ns.tolist() == [START + 5 * SECOND] * 2
    assert len(blocks_in(tmp_path)) == 1 or blocks_in(tmp_path)[0].cycle == START // SECOND


def test_opening_with_another_roll_cycle_warns_and_keeps_the_stored_one(tmp_path: Path, clock: Clock) -> None:
    _fill(tmp_path, clock, 2)
    with pytest.warns(UserWarning, match=r"SECONDLY.*as it was created.*HOURLY"):
        journal = Journal.open(tmp_path, block_size=BLOCK, roll_cycle="HOURLY", clock_ns=clock)
    assert journal.settings.roll_cycle == "SECONDLY"
    journal.close()


def test_a_tailer_goes_backward_over_cycles_to_the_start_and_forward_again(tmp_path: Path, clock: Clock) -> None:
    written = _fill(tmp_path, clock, 6, 300)
    with Tailer(tmp_path) as tailer:
        tailer.to_end()
        assert tailer.read() is None
        back = list(iter(tailer.read_back, None))
        assert back == written[::-1]
        assert tailer.read_back() is None
        assert tailer.read_many(7) == written[:7]
        assert tailer.read_back() == written[6]
        assert tailer.read_back() == written[5]
        assert tailer.read() == written[5]


def test_to_time_finds_the_first_record_at_or_after_a_time(tmp_path: Path, clock: Clock) -> None:
    written = _fill(tmp_path, clock, 6, 400)
    with Tailer(tmp_path) as tailer:
        times = []
        while (batch := tailer.read_batch(1_000)) is not None:
            times += batch.appended_at_ns.tolist()
        for place in [*range(0, len(times), 97), len(times) - 1]:
            assert tailer.to_time(times[place]).read() == written[place]
            assert tailer.to_time(times[place] - 1).read() == written[place]
            following = written[place + 1] if place + 1 < len(written) else None
            assert tailer.to_time(times[place] + 1).read() == following
        assert tailer.to_time(0).read() == written[0]


def test_to_index_finds_each_record_and_refuses_missing_ones(tmp_path: Path, clock: Clock) -> None:
    written = _fill(tmp_path, clock, 5, 700)
    with Tailer(tmp_path) as tailer:
        for entry in written[::53]:
            assert tailer.to_index(entry[0]).read() == entry
        assert tailer.to_index(written[-1][0] + 1).read() is None
        for wrong in (written[-1][0] + 2, 0, written[0][0] + 700_000, written[-1][0] + (7 << 30)):
            with pytest.raises(NoSuchRecord):
                tailer.to_index(wrong)


def test_records_between_two_indices_are_counted_across_cycles(tmp_path: Path, clock: Clock) -> None:
    written = _fill(tmp_path, clock, 5, 40)
    with Tailer(tmp_path) as tailer:
        for first, last in itertools.product((0, 3, 39, 40, 111), (0, 40, 95, 199)):
            if first <= last:
                assert tailer.count_between(written[first][0], written[last][0]) == last - first
        assert tailer.count_between(written[0][0], written[-1][0] + 1) == len(written)
        with pytest.raises(ValueError, match="before"):
            tailer.count_between(written[9][0], written[2][0])


def test_a_named_tailer_continues_after_the_records_it_handled(tmp_path: Path, clock: Clock) -> None:
    written = _fill(tmp_path, clock, 3)
    with Tailer(tmp_path, name="billing") as tailer:
        for expected in written[:4]:
            with tailer.handling() as entry:
                assert entry == expected
        with pytest.raises(ZeroDivisionError), tailer.handling():
            _ = 1 / 0
        assert tailer.read() == written[4]  # read, but not handled
    with Tailer(tmp_path, name="billing") as tailer:
        assert tailer.read() == written[4]
        tailer.commit()
    with Tailer(tmp_path, name="other") as tailer:
        assert tailer.read() == written[0]
    with Tailer(tmp_path, name="billing") as tailer:
        assert list(tailer) == written[5:]
    with pytest.raises(ValueError, match="name"):
        Tailer(tmp_path, name="../escape")


def test_a_named_tailer_whose_position_was_released_continues_at_the_oldest_record(
    tmp_path: Path, clock: Clock
) -> None:
    written = _fill(tmp_path, clock, 4)
    with Tailer(tmp_path, name="slow") as tailer:
        tailer.read()
        tailer.commit()
    for name in blocks_in(tmp_path)[:2]:
        name.path.unlink()
    with Tailer(tmp_path, name="slow") as tailer:
        assert tailer.read() == written[10]


def test_a_batch_is_a_view_of_the_block(tmp_path: Path) -> None:
    ticks = np.zeros(1_000, [("symbol", "S8"), ("price", "<i8"), ("size", "<u4"), ("pad", "<u4")])
    ticks["price"] = np.arange(1_000) * 7
    with Journal.open(tmp_path, block_size=BLOCK) as journal, journal.tailer() as tailer:
        first = journal.append_rows(ticks)
        batch = tailer.read_batch(10_000)
        assert batch is not None
        assert (batch.first_index, len(batch), batch.next_index) == (first, 1_000, first + 1_000)
        rows = batch.rows(ticks.dtype)
        assert rows is not None
        assert (rows == ticks).all()
        assert np.shares_memory(rows, batch.data)
        assert not rows.flags.writeable
        assert batch.packed().tobytes() == ticks.tobytes()
        with pytest.raises(ValueError, match="24 bytes"):
            batch.rows("<u8")
        journal.append_batch([b"a", b"", b"ccc"])
        mixed = tailer.read_batch(10)
        assert mixed is not None
        assert mixed.rows() is None
        assert mixed.records() == [bytes(each) for each in mixed] == [b"a", b"", b"ccc"]
        assert mixed.packed().tobytes() == b"accc"
    assert (rows == ticks).all()  # a view outlives the tailer


def test_a_batch_can_be_read_in_parts_and_from_its_middle(tmp_path: Path) -> None:
    records = [b"%d" % number * (number % 5) for number in range(500)]
    with Journal.open(tmp_path, block_size=BLOCK) as journal, journal.tailer() as tailer:
        first = journal.append_batch(records)
        taken: list[bytes] = []
        for count in itertools.cycle([1, 7, 64]):
            if len(taken) == 448:
                break
            batch = tailer.read_batch(min(count, 448 - len(taken)))
            assert batch is not None
            taken += batch.records()
            entry = tailer.read() if len(taken) < 448 else None
            taken += [entry[1]] if entry else []
        assert taken == records[:448]
        assert tailer.to_index(first + 321).read_many(1_000) == [
            (first + place, records[place]) for place in range(321, 500)
        ]


def test_an_excerpt_may_be_far_larger_than_a_block(tmp_path: Path) -> None:
    large = np.random.default_rng(1).integers(0, 256, 24 << 20, np.uint8)
    with Journal.open(tmp_path, block_size=BLOCK) as journal, journal.tailer() as tailer:
        journal.append(b"small")
        index = journal.append(large)
        journal.append(b"small again")
        assert tailer.read() is not None
        batch = tailer.read_batch(1)
        assert batch is not None
        assert batch.first_index == index
        assert (batch[0] == large).all()
        assert [record for _, record in tailer] == [b"small again"]
        with pytest.raises(RecordTooLong):
            journal.append(np.empty((1 << 30) + 1, np.uint8))


@pytest.mark.parametrize("key", [None, b"k" * 32])
def test_closed_cycles_are_compressed_and_read_as_before(tmp_path: Path, clock: Clock, key: bytes | None) -> None:
    written = _fill(tmp_path, clock, 5, 200, key=key, upkeep=Upkeep(compress=True))
    suffixes = [name.path.suffix for name in blocks_in(tmp_path)]
    assert suffixes == [COMPRESSED_SUFFIX] * 4 + [".tfj"]
    assert blocks_in(tmp_path)[0].path.stat().st_size < BLOCK // 4
    with Tailer(tmp_path, key=key) as tailer:
        assert list(tailer) == written
        assert list(iter(tailer.read_back, None)) == written[::-1]
        assert tailer.to_index(written[333][0]).read() == written[333]
    with Journal.open(tmp_path, block_size=BLOCK, roll_cycle="SECONDLY", clock_ns=clock, key=key) as journal:
        assert list(journal.records()) == written


def test_recovery_decompresses_only_the_last_closed_cycle(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = _fill(tmp_path, clock, 6, upkeep=Upkeep(compress=True))
    control = tmp_path / CONTROL_NAME
    data = control.read_bytes()
    control.write_bytes(data[:IS_CLEAN] + bytes(8) + data[IS_CLEAN + 8 :])  # as after a kill
    opened: list[Path] = []

    def opening(path: Path, journal_id: UUID | None) -> Block:
        opened.append(path)
        return open_to_read(path, journal_id)

    monkeypatch.setattr("tandemfeed.journal.append.chain.open_to_read", opening)
    with Journal.open(tmp_path, block_size=BLOCK, roll_cycle="SECONDLY", clock_ns=clock) as journal:
        assert opened == [blocks_in(tmp_path)[-2].path]
        assert list(journal.records()) == written


def test_files_released_by_another_process_are_tolerated_and_do_not_reappear(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fill(tmp_path, clock, 4)
    names = blocks_in(tmp_path)
    names[0].path.unlink()
    assert Retention(files=2).surplus(names, 0.0) == [names[1]]
    copy = zstandard.ZstdCompressor.copy_stream

    def copy_and_release(*arguments: object, **options: object) -> object:
        done = copy(*arguments, **options)
        names[1].path.unlink()
        return done

    monkeypatch.setattr(
        "tandemfeed.journal.format.compression.zstandard", SimpleNamespace(ZstdCompressor=_compressor(copy_and_release))
    )
    compress_block(names[1].path)
    assert [name.ordinal for name in blocks_in(tmp_path)] == [name.ordinal for name in names[2:]]


def _compressor(copy_stream: object) -> object:
    return lambda **options: SimpleNamespace(
        copy_stream=lambda *arguments, **more: copy_stream(zstandard.ZstdCompressor(**options), *arguments, **more)  # type: ignore[operator]
    )


def test_blocks_released_while_the_folder_is_listed_cause_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing opens each part of a cycle to read its first index; retention releases the oldest meanwhile."""
    record = bytes(1_000)
    with Journal.open(tmp_path, block_size=BLOCK) as journal:
        while len(blocks_in(tmp_path)) < 6:
            journal.append(record)
        journal.sync()
        listings = 0

        def list_and_release(folder: Path) -> list[BlockName]:
            nonlocal listings
            names = blocks_in(folder)
            if listings < 3:
                for name in names[1:2]:  # not the first part, whose index follows from its name
                    name.path.unlink()
            listings += 1
            return names

        monkeypatch.setattr(library, "blocks_in", list_and_release)
        tailer = Tailer(tmp_path)
        indices = [index for index, _ in tailer]
        assert listings >= 4
        monkeypatch.undo()
        assert indices == [index for index, _ in Tailer(tmp_path)]
        assert tailer.count_between(indices[0], indices[-1] + 1) == len(indices)


def test_a_mixed_batch_has_records_of_many_sizes(tmp_path: Path) -> None:
    records = [bytes(size % 7) for size in range(100)]
    with Journal.open(tmp_path, block_size=BLOCK) as journal:
        for record in records:
            journal.append(record)
        batch = journal.tailer().read_batch(200, mixed=True)
        assert batch is not None
        assert batch.records() == records
