"""Output journals of a few trades and quotes, as an adapter writes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tandemfeed.adapter.records.output_journal import OutputJournal
from tandemfeed.feedcore.documents.message_model import frame_dtype, frame_size, load_message_model
from tandemfeed.feedcore.wire.output_packet import OutputPacket, encode_runs
from tandemfeed.feedcore.wire.position import Run
from tests.spark_feed.source_material import ROOT

MODEL_FILE = ROOT / "deploy" / "examples" / "ticks" / "message-model.xml"
MODEL = load_message_model(MODEL_FILE)
BLOCK = 1 << 18
SESSION = 20_261_121
SYMBOLS = ("AAPL", "IBM", "XEL")
FIRST_EVENT_NS = 1_790_000_000_000_000_123
SENT_NS = 1_790_000_000_000_000_000


def price_of(seq: int) -> int:
    """The mantissa of a message's price: negative for some."""
    return (seq - 3) * 10_000_000


def frame_of(seq: int, source_offset: int) -> bytes:
    """The framed message of a number: a trade if it is odd, else a quote; symbols take turns."""
    name = "TradeTick" if seq % 2 else "QuoteTick"
    message = MODEL.schema.messages[name]
    row = np.zeros(1, frame_dtype(message, frame_size(message)))
    head: dict[str, Any] = {
        "frame_length": row.dtype.itemsize,
        "source_offset": source_offset,
        "blockLength": message.block_length,
        "templateId": message.template_id,
        "schemaId": MODEL.schema.schema_id,
        "symbol": SYMBOLS[seq % 3].encode(),
        "eventAt": FIRST_EVENT_NS + seq * 1_000_000,
    }
    trade = {"price": price_of(seq), "size": 4_000_000_000, "side": b"B", "dayVolume": (1 << 64) - 1}
    for field, value in (head | (trade if seq % 2 else {"bidPrice": price_of(seq)})).items():
        row[field] = value
    return row.tobytes()


def packet(
    first_seq: int,
    run_sizes: Sequence[int],
    *,
    epoch: int = 1,
    channel: int = 1,
    flags: int = 0,
    sent_ns: int = SENT_NS,
) -> OutputPacket:
    """A packet with a run per size, in turns of source streams 1 and 2. Its `input_seq` equals its `message_seq`."""
    runs: list[Run] = []
    frames = b""
    seq = first_seq
    for number, size in enumerate(run_sizes):
        runs.append(Run(epoch, seq, seq, 1 + number % 2, 100 + seq, size, size))
        frames += b"".join(frame_of(seq + place, place) for place in range(size))
        seq += size
    return OutputPacket(
        flags, 1, channel, 1, SESSION, epoch, first_seq, first_seq, seq - first_seq, tuple(runs), sent_ns, 0,
        encode_runs(tuple(runs)) + frames,
    )  # fmt: skip


def journal_of(folder: Path, packets: Iterator[OutputPacket] | Sequence[OutputPacket]) -> Path:
    """An output journal with these packets."""
    journal = OutputJournal(folder, block_size=BLOCK)
    for each in packets:
        journal.append(each)
    journal.close()
    return folder


def plain_packets(end_seq: int, size: int = 6, channel: int = 1) -> Iterator[OutputPacket]:
    """Packets of a size, from message 1 to before `end_seq`."""
    for first in range(1, end_seq, size):
        count = min(size, end_seq - first)
        yield packet(first, (count // 2, count - count // 2), channel=channel)
