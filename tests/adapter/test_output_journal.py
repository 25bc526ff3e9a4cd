"""The output journal: replay by `message_seq` from the journal itself, over epochs, restarts and retention."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter.output_journal import OutputJournal
from adapter.saved_state import SavedState, decode_saved_state, encode_saved_state
from feedcore.replica.channel_state import ChannelSnapshot
from feedcore.wire.lineage import Lineage
from feedcore.wire.output_packet import OutputFlag, OutputPacket, decode_output_packet, encode_runs
from feedcore.wire.position import MessageStreamState, Run
from journal.sequence_marks import MARK_EVERY
from tests.small_disk import SmallDisk

BLOCK = 1 << 18


def packet(channel: int, first: int, count: int, epoch: int = 1, epoch_first: int = 1) -> OutputPacket:
    """A packet whose payload says whose it is."""
    runs = (Run(epoch, first, 1, first, count, count),)
    body = b"".join(b"\x0c\x00\x00\x00%08d" % (first + place) for place in range(count))
    return OutputPacket(
        0, 1, channel, 1, 20_261_121, epoch, first, epoch_first, count, runs, 0, 0, encode_runs(runs) + body
    )


def replayed(journal: OutputJournal, channel: int, first: int, last: int) -> list[tuple[int, int, int]]:
    """(epoch, first message_seq, count) of what replay gives."""
    found = [decode_output_packet(data) for data in journal.replay(channel, first, last)]
    assert all(each.flags & OutputFlag.RETRANSMISSION for each in found)
    return [(each.epoch, each.first_message_seq, each.message_count) for each in found]


def test_exactly_the_packets_that_hold_the_messages_are_replayed(tmp_path: Path) -> None:
    journal = OutputJournal(tmp_path, block_size=BLOCK)
    source, firsts, seq = random.Random(1), {1: [], 2: []}, {1: 1, 2: 1}
    for _ in range(3_000):
        channel, count = source.choice((1, 2)), source.randint(1, 9)
        journal.append(packet(channel, seq[channel], count))
        firsts[channel].append((seq[channel], count))
        seq[channel] += count
    for is_reopened in (False, True):
        if is_reopened:
            journal.close()
            journal = OutputJournal(tmp_path, block_size=BLOCK)
        for channel in (1, 2):
            for _ in range(60):
                first = source.randrange(1, seq[channel])
                last = min(first + source.choice((0, 1, 40, 5_000)), seq[channel] + 10)
                expected = [(1, a, n) for a, n in firsts[channel] if a <= last and a + n > first]
                assert replayed(journal, channel, first, last) == expected
        assert replayed(journal, 3, 1, 100) == []
    journal.close()


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 400), st.integers(1, 8), st.integers(0, 300)), min_size=1, max_size=6))
def test_what_a_newer_epoch_numbered_anew_is_never_replayed(
    tmp_path_factory: pytest.TempPathFactory, terms: list[tuple[int, int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("epochs")
    journal = OutputJournal(folder, block_size=BLOCK)
    model: list[tuple[int, int, int]] = []
    seq = 1
    for epoch, (packets, count, back) in enumerate(terms, 1):
        seq = max(1, seq - back)
        begin = seq
        model = [each for each in model if each[1] < begin]
        for _ in range(packets):
            journal.append(packet(1, seq, count, epoch, begin))
            model.append((epoch, seq, count))
            seq += count
    for is_reopened in (False, True):
        if is_reopened:
            journal.close()
            journal = OutputJournal(folder, block_size=BLOCK)
        assert replayed(journal, 1, 1, seq) == model
        for first in range(1, seq, max(seq // 7, 1)):
            # Where an epoch began in the middle of a packet, both hold the number; the newer one counts.
            holding = [each for each in model if each[1] <= first < each[1] + each[2]]
            assert replayed(journal, 1, first, first) == holding[-1:]
    journal.close()


def test_what_retention_released_is_left_out_and_its_places_are_forgotten(tmp_path: Path) -> None:
    journal = OutputJournal(tmp_path, block_size=BLOCK, retain_blocks=2)
    for first in range(1, 40_000, 20):
        journal.append(packet(1, first, 20))
    journal._journal._keeper._pool.submit(lambda: None).result()  # the keeper has done what it was told
    journal.append(packet(1, 40_001, 20))
    marks = journal._channels[1]
    assert min(marks.indices) >= journal._journal.first_index
    assert len(marks.indices) < 2_000 / MARK_EVERY
    kept = replayed(journal, 1, 1, 50_000)
    assert kept[-1] == (1, 40_001, 20)
    assert 100 < len(kept) < 2_000
    assert [first for _, first, _ in kept] == list(range(kept[0][1], 40_002, 20))
    journal.close()


SNAPSHOT = ChannelSnapshot(7, MessageStreamState(3, 101, {1: 51, 2: 52}), Lineage(((3, 90),)), b"conversion state")
GOLDEN = bytes.fromhex(
    "54465331010007004d2a3501030000005a000000000000006500000000000000"
    "020000000000000001000000000000003300000000000000020000000000000034000000000000"
    "00636f6e76657273696f6e207374617465"
)


def test_a_saved_state_has_its_bytes_for_ever() -> None:
    state = SavedState(1, 20_261_453, SNAPSHOT)
    assert encode_saved_state(state).hex() == GOLDEN.hex()
    assert decode_saved_state(GOLDEN) == state
    for damaged in (b"", GOLDEN[:39], GOLDEN[:60], b"TFO1" + GOLDEN[4:]):
        with pytest.raises(ValueError, match="saved state"):
            decode_saved_state(damaged)


def test_the_newest_state_of_each_channel_is_found_after_a_restart(tmp_path: Path) -> None:
    journal = OutputJournal(tmp_path, block_size=BLOCK)
    small = ChannelSnapshot(1, MessageStreamState(1, 5, {1: 5}), Lineage(((1, 1),)), b"")
    journal.save(1, 20_261_121, small)
    journal.append(packet(1, 1, 4))
    journal.save(1, 20_261_121, SNAPSHOT)
    newer = ChannelSnapshot(1, MessageStreamState(1, 9, {1: 9}), Lineage(((1, 1),)), bytes(500))
    journal.save(1, 20_261_121, newer)
    journal.close()
    journal = OutputJournal(tmp_path, block_size=BLOCK)
    transmitted = packet(1, 9, 2)
    journal.append(packet(2, 7, 2))
    journal.append(transmitted)
    found = sorted(journal.resumable(1, 20_261_121), key=lambda each: each[0].channel_id)
    assert found == [(newer, list(transmitted.runs)), (SNAPSHOT, [])]
    assert journal.resumable(1, 20_261_122) == journal.resumable(2, 20_261_121) == []
    assert replayed(journal, 1, 1, 10) == [(1, 1, 4), (1, 9, 2)]
    journal.close()


def test_a_full_disk_stops_no_stream_and_keeping_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = tmp_path / "disk"
    now_ns = 1
    monkeypatch.setattr("adapter.output_journal.time.monotonic_ns", lambda: now_ns)
    with SmallDisk(disk, "1m"):
        journal = OutputJournal(disk / "journal", block_size=BLOCK)
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(300 << 10))
        first = 1
        while not journal.unkept_count:
            journal.append(packet(1, first, 9))
            first += 9
        kept = replayed(journal, 1, 1, first)
        assert kept[0] == (1, 1, 9)
        assert kept[-1] == (1, first - 18, 9)
        ballast.unlink()
        journal.append(packet(1, first, 9))  # not tried again so soon
        assert journal.unkept_count == 2
        now_ns += 10**10
        journal.append(packet(1, first + 9, 9))
        assert replayed(journal, 1, 1, first + 20) == [*kept, (1, first + 9, 9)]
        journal.close()
