"""Provisional packets in the output journal: not replayed by number until an epoch numbers them, found by source."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapter.output_journal import OutputJournal
from adapter.provisional_index import Numbering, decode_numbering
from feedcore.wire.output_packet import OutputFlag, decode_output_packet
from tests.adapter.test_output_journal import BLOCK, packet, replayed

GOLDEN = bytes.fromhex("54464e3101000000040000000000000015000000000000003c000000000000003e00000000000000")
NUMBERING = Numbering(1, 4, 21, 60, 62)


def test_a_numbering_has_its_bytes_for_ever() -> None:
    assert NUMBERING.encode().hex() == GOLDEN.hex()
    assert decode_numbering(GOLDEN) == NUMBERING
    for damaged in (b"", GOLDEN[:-1], b"TFO1" + GOLDEN[4:]):
        with pytest.raises(ValueError, match="numbering"):
            decode_numbering(damaged)


@pytest.mark.parametrize("is_reopened", [False, True])
def test_what_was_numbered_for_good_is_replayed_under_its_epoch(tmp_path: Path, is_reopened: bool) -> None:
    journal = OutputJournal(tmp_path, block_size=BLOCK)
    journal.append(packet(1, 1, 20))
    for first in (21, 24):
        journal.append(packet(1, first, 3)._replace(flags=OutputFlag.PROVISIONAL))
        journal.append(packet(2, first, 3))
    assert replayed(journal, 1, 1, 100) == [(1, 1, 20)]
    (found,) = journal.replay_provisional(1, 1, 25, 25)
    assert decode_output_packet(found).runs == packet(1, 24, 3).runs
    journal.number_for_good(1, 7, 21, 27)
    journal.append(packet(1, 27, 2, 7, 21))
    if is_reopened:
        journal.close()
        journal = OutputJournal(tmp_path, block_size=BLOCK)
    assert replayed(journal, 1, 1, 100) == [(1, 1, 20), (7, 21, 3), (7, 24, 3), (7, 27, 2)]
    (first, second, _) = (decode_output_packet(data) for data in journal.replay(1, 21, 27))
    assert (first.epoch_first_message_seq, first.runs[0].epoch) == (21, 7)
    assert second.flags == OutputFlag.FROM_ACTIVE | OutputFlag.RETRANSMISSION
    assert replayed(journal, 2, 21, 26) == [(1, 21, 3), (1, 24, 3)]
    journal.close()


def test_what_nobody_numbered_is_never_replayed_by_number(tmp_path: Path) -> None:
    journal = OutputJournal(tmp_path, block_size=BLOCK)
    journal.append(packet(1, 21, 3)._replace(flags=OutputFlag.PROVISIONAL))
    journal.close()
    journal = OutputJournal(tmp_path, block_size=BLOCK)
    assert replayed(journal, 1, 1, 100) == []
    journal.append(packet(1, 21, 5, 2, 21))  # somebody else was granted the lease
    assert replayed(journal, 1, 1, 100) == [(2, 21, 5)]
    assert len(list(journal.replay_provisional(1, 1, 21, 23))) == 1
    journal.close()
