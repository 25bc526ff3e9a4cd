"""Provisional packets in the output journal: replayed by source message, and by number only once committed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tandemfeed.adapter.records import output_journal
from tandemfeed.adapter.records.output_journal import OutputJournal
from tandemfeed.feedcore.range_set import RangeSet
from tandemfeed.feedcore.wire.output_packet import OutputFlag, decode_output_packet
from tandemfeed.feedcore.wire.provisional_commit import Commit, decode_commit
from tests.adapter.records.test_output_journal import BLOCK, packet, replayed

GOLDEN = bytes.fromhex(
    "54464332" "01000000" "04000000" "00000000"
    "1500000000000000" "1b00000000000000" "3c00000000000000" "3e00000000000000"
)  # fmt: skip
COMMIT = Commit(1, 4, 21, 27, 60, 62, 0)
WITH_SESSION = bytes.fromhex(
    "54464332" "01000000" "04000000" "29293501"
    "1500000000000000" "1b00000000000000" "3c00000000000000" "3e00000000000000"
)  # fmt: skip


def test_the_encoding_of_a_commit_never_changes() -> None:
    assert COMMIT.encode().hex() == GOLDEN.hex()
    assert decode_commit(GOLDEN) == COMMIT
    assert COMMIT._replace(session=20_261_161).encode().hex() == WITH_SESSION.hex()
    assert decode_commit(WITH_SESSION) == COMMIT._replace(session=20_261_161)
    for damaged in (b"", GOLDEN[:-1], b"TFO2" + GOLDEN[4:]):
        with pytest.raises(ValueError, match="not a commit"):
            decode_commit(damaged)


@pytest.mark.parametrize("is_reopened", [False, True])
def test_committed_packets_are_replayed_under_their_epoch(tmp_path: Path, is_reopened: bool) -> None:
    journal = OutputJournal(tmp_path, block_size=BLOCK)
    journal.append(packet(1, 1, 20))
    for first in (21, 24):
        journal.append(packet(1, first, 3)._replace(flags=OutputFlag.PROVISIONAL))
        journal.append(packet(2, first, 3))
    assert replayed(journal, 1, 1, 100) == [(1, 1, 20)]
    (found,) = journal.replay_provisional(1, {1: RangeSet([(25, 26)])})
    assert decode_output_packet(found).runs == packet(1, 24, 3).runs
    journal.commit_provisional(1, 7, 21, 27)
    journal.append(packet(1, 27, 2, 7))
    if is_reopened:
        journal.close()
        journal = OutputJournal(tmp_path, block_size=BLOCK)
    assert replayed(journal, 1, 1, 100) == [(1, 1, 20), (7, 21, 3), (7, 24, 3), (7, 27, 2)]
    (first, second, _) = (decode_output_packet(data) for data in journal.replay(1, 21, 28))
    assert (first.epoch, first.runs[0].epoch) == (7, 7)
    assert second.flags == OutputFlag.FROM_ACTIVE | OutputFlag.RETRANSMISSION
    assert replayed(journal, 2, 21, 27) == [(1, 21, 3), (1, 24, 3)]
    journal.close()


def test_uncommitted_packets_are_never_replayed_by_number(tmp_path: Path) -> None:
    journal = OutputJournal(tmp_path, block_size=BLOCK)
    journal.append(packet(1, 21, 3)._replace(flags=OutputFlag.PROVISIONAL))
    journal.close()
    journal = OutputJournal(tmp_path, block_size=BLOCK)
    assert replayed(journal, 1, 1, 100) == []
    journal.append(packet(1, 21, 5, 2))  # another adapter was granted the lease
    assert replayed(journal, 1, 1, 100) == [(2, 21, 5)]
    assert len(list(journal.replay_provisional(1, {1: RangeSet([(21, 24)])}))) == 1
    journal.close()


@pytest.mark.parametrize("is_reopened", [False, True])
def test_only_the_newest_provisional_packets_within_the_range_are_committed(tmp_path: Path, is_reopened: bool) -> None:
    journal = OutputJournal(tmp_path, block_size=BLOCK)
    # The packets of a first outage were never committed. Of a second outage, from 24 on, two packets are committed.
    for first in (21, 24, 27, 24, 27, 30):
        journal.append(packet(1, first, 3)._replace(flags=OutputFlag.PROVISIONAL, adapter_id=first))
    journal.commit_provisional(1, 7, 24, 30)
    if is_reopened:
        journal.close()
        journal = OutputJournal(tmp_path, block_size=BLOCK)
    assert replayed(journal, 1, 1, 100) == [(7, 24, 3), (7, 27, 3)]
    journal.commit_provisional(1, 8, 30, 33)  # uncommitted packets no longer count
    assert replayed(journal, 1, 1, 100) == [(7, 24, 3), (7, 27, 3)]
    journal.close()


def test_a_commit_of_packets_without_messages_is_replayed(tmp_path: Path) -> None:
    journal = OutputJournal(tmp_path, block_size=BLOCK)
    journal.append(packet(1, 21, 3, is_silent=True)._replace(flags=OutputFlag.PROVISIONAL))
    journal.commit_provisional(1, 7, 21, 24)
    assert replayed(journal, 1, 22, 23) == [(7, 21, 3)]
    journal.close()


def test_the_loop_does_not_wait_while_a_replay_searches_for_provisional_packets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = OutputJournal(tmp_path, block_size=BLOCK)
    journal.append(packet(1, 21, 4)._replace(flags=OutputFlag.PROVISIONAL))
    search, searched = output_journal.holding, list[bool]()

    def unlocked(*arguments: Any) -> list[int]:
        searched.append(journal._lock.locked())  # the loop needs it to append
        return search(*arguments)

    monkeypatch.setattr(output_journal, "holding", unlocked)
    assert len(list(journal.replay_provisional(1, {1: RangeSet([(21, 24)])}))) == 1
    assert searched == [False]
    journal.close()


def test_a_provisional_packet_comes_once_whichever_of_its_source_messages_are_wanted(tmp_path: Path) -> None:
    journal = OutputJournal(tmp_path, block_size=BLOCK)
    for first in (21, 25, 29):
        journal.append(packet(1, first, 4)._replace(flags=OutputFlag.PROVISIONAL))
    wanted = {1: RangeSet([(21, 22), (23, 24), (31, 40)]), 2: RangeSet([(1, 50)])}
    found = [decode_output_packet(each) for each in journal.replay_provisional(1, wanted)]
    assert [each.first_input_seq for each in found] == [21, 29]
    journal.close()
