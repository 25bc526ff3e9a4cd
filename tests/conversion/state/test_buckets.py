"""Repairing conversion state bucket by bucket: different buckets are replaced, equal ones stay unchanged."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from tandemfeed.adapter.conversion import CompiledConverter
from tandemfeed.adapter.conversion.loading.converter_loading import load_checked_table
from tandemfeed.feedcore.replica.output.converter import Converter
from tandemfeed.feedcore.wire.source_packet import SOURCE_FRAME, SOURCE_FRAME_SIZE, encode_source_header
from tests.conversion.oracle.interpreted import InterpretedConverter

DOCUMENTS = Path(__file__).resolve().parents[3] / "deploy" / "examples" / "ticks"
TABLE = load_checked_table(
    DOCUMENTS / "source-format.xml", DOCUMENTS / "converter-table.xml", DOCUMENTS / "message-model.xml"
)


def feed(converter: Converter, keys: range, size: int) -> None:
    """A trade of `size` for each key."""
    out = np.zeros(60_000, np.uint8)
    for first in range(keys.start, keys.stop, 500):
        trades = [
            b"%-8d" % key + struct.pack("<QqIcBH", 5, key + 1, size, b"B", 0, 0)
            for key in range(first, min(first + 500, keys.stop))
        ]
        header = encode_source_header(
            feed_id=1, source_stream_id=1, message_count=len(trades), session=1, first_source_seq=1, sent_at_ns=0
        )
        data = header + b"".join(SOURCE_FRAME.pack(SOURCE_FRAME_SIZE + len(body), 1) + body for body in trades)
        assert converter.check(data)
        assert converter.convert(data, 0, len(trades), out, 0, len(out)).message_count == len(trades)


@pytest.fixture(params=["compiled", "interpreted"])
def pair(request: pytest.FixtureRequest) -> tuple[Converter, Converter]:
    kind = CompiledConverter if request.param == "compiled" else InterpretedConverter
    return kind(TABLE), kind(TABLE)


def test_only_the_buckets_that_differ_are_repaired(pair: tuple[Converter, Converter]) -> None:
    active, backup = pair
    feed(active, range(2_000), 3)
    feed(backup, range(2_000), 3)
    feed(backup, range(40, 43), 7)  # three symbols are different
    feed(backup, range(5_000, 5_002), 1)  # two exist only at the backup
    differ = np.flatnonzero(active.digests() != backup.digests()).tolist()
    assert 1 <= len(differ) <= 5
    repair = active.snapshot_buckets(differ)
    assert len(repair) < len(active.snapshot()) / 4
    backup.restore_buckets(repair)
    assert backup.digests().tolist() == active.digests().tolist()
    assert backup.snapshot() == active.snapshot()
    for converter in pair:
        feed(converter, range(1_990, 2_010), 5)
    assert backup.snapshot() == active.snapshot()


def test_all_buckets_together_are_the_whole_state(pair: tuple[Converter, Converter]) -> None:
    active, backup = pair
    feed(active, range(300), 3)
    feed(backup, range(200, 700), 9)
    backup.restore_buckets(active.snapshot_buckets(range(len(active.digests()))))
    assert backup.snapshot() == active.snapshot()
    backup.restore_buckets(active.snapshot_buckets([]))
    assert backup.snapshot() == active.snapshot()


def test_kernel_and_interpreter_accept_each_others_buckets() -> None:
    compiled, oracle = CompiledConverter(TABLE), InterpretedConverter(TABLE)
    feed(compiled, range(200), 3)
    feed(oracle, range(200), 3)
    assert compiled.snapshot() == oracle.snapshot()
    for buckets in ([0], [5, 63, 5], range(64)):
        assert compiled.snapshot_buckets(buckets) == oracle.snapshot_buckets(buckets)
    feed(compiled, range(100, 300), 3)
    compiled.restore_buckets(oracle.snapshot_buckets(range(64)))
    assert compiled.snapshot() == oracle.snapshot()
    feed(oracle, range(100, 300), 3)
    oracle.restore_buckets(compiled.snapshot_buckets(range(64)))
    assert oracle.snapshot() == compiled.snapshot()


def test_damaged_buckets_are_refused_and_change_nothing(pair: tuple[Converter, Converter]) -> None:
    active, backup = pair
    feed(active, range(50), 3)
    feed(backup, range(30), 3)
    before, good = backup.snapshot(), active.snapshot_buckets([1, 2])
    for damaged in (b"", good[:-1], good + b"x", active.snapshot(), good[:4] + bytes(16) + good[20:]):
        with pytest.raises(ValueError, match="snapshot"):
            backup.restore_buckets(damaged)
    assert backup.snapshot() == before
