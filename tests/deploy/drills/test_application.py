"""The application of a witness counts what is missing, repeated and late, whatever the shape in which it reads."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from tandemfeed.client_lib import Batch, Batches
from tandemfeed.client_lib.messages.decoding import Decoder
from tandemfeed.deploy.cluster.topology import EXAMPLES, SESSION
from tandemfeed.deploy.drills.application import Application
from tandemfeed.feedcore.wire.output_packet import OUTPUT_FRAME, OUTPUT_FRAME_SIZE, OutputPacket, encode_runs
from tandemfeed.feedcore.wire.position import Run

DECODER = Decoder((EXAMPLES / "message-model.xml").read_bytes())
Take = Callable[[Application, list[Batch]], object]


def batch(first_message_seq: int, first_source_seq: int, count: int, *, stream: int = 1) -> Batch:
    """Trades and quotes in turn."""
    frames = b""
    for at in range(count):
        seq = first_source_seq + at
        price = Decimal(seq).scaleb(-2)
        values: dict[str, Any] = {"symbol": f"S{seq % 7}", "event_at": 1_700_000_000_000_000_000 + seq}
        if seq % 3:
            trade = {"day_volume": 1, "day_high": price, "day_low": price, "vwap": price, "side": "B", "flags": 0}
            body = bytes(DECODER.classes["TradeTick"](price=price, size=1, **trade, **values))
        else:
            quote = {"bid_price": price, "ask_price": price, "bid_size": 1, "ask_size": 1, "last_price": price}
            body = bytes(DECODER.classes["QuoteTick"](**quote, **values))
        frames += OUTPUT_FRAME.pack(OUTPUT_FRAME_SIZE + len(body), at) + body
    run = Run(1, first_message_seq, first_message_seq, stream, first_source_seq, count, count)
    packet = OutputPacket(
        0, 1, 1, 1, SESSION, 1, first_message_seq, first_message_seq, count, (run,), 0, 0, encode_runs((run,)) + frames
    )
    return Batch(packet, 0, 0, DECODER)


def messages(application: Application, batches: list[Batch]) -> None:
    for each in batches:
        for message in each.messages():
            application.take_message(message)


def arrays(application: Application, batches: list[Batch]) -> None:
    for each in batches:
        application.take_batch(each)


def frames(application: Application, batches: list[Batch]) -> None:
    application.take_frames(Batches(batches, DECODER.classes))


@pytest.mark.parametrize("take", [messages, arrays, frames])
def test_what_is_missing_repeated_or_late_is_counted_and_the_content_is_kept(take: Take, tmp_path: Any) -> None:
    clean, faulty = (Application(lambda: None, starts_live=False) for _ in range(2))
    take(clean, [batch(1, 1, 5), batch(6, 1, 3, stream=2), batch(9, 6, 5)])
    assert (clean.delivered, clean.missing, clean.repeated) == (13, 0, 0)
    assert clean.has_all({1: 10, 2: 3}, 0)
    assert not clean.has_all({1: 11, 2: 3}, SESSION)
    clean.save(tmp_path / "content.npy")
    found = np.load(tmp_path / "content.npy")
    ones = found[found["stream"] == 1]
    assert ones["source_seq"].tolist() == list(range(1, 11))
    assert ones["symbol"].tolist() == [f"S{seq % 7}".encode() for seq in range(1, 11)]
    assert ones["event_at"].tolist() == [1_700_000_000_000_000_000 + seq for seq in range(1, 11)]
    assert ones["value"].tolist() == [seq * 10_000_000 for seq in range(1, 11)]
    take(faulty, [batch(1, 2, 3), batch(4, 7, 3), batch(7, 5, 2), batch(9, 9, 3)])
    assert (faulty.delivered, faulty.missing, faulty.repeated) == (11, 1 + 2, 2 + 1)
