"""Consecutive output packets that are decoded and checked together, with numpy: what a replayed history consists of.

A client that recovers millions of messages would spend most of its time on steps that each packet repeats. The packets
of a `PacketSeries` continue each other, so whoever knows where it begins may take all of it at once.

Whatever is unusual (a heartbeat, a provisional packet, several runs, a source gap, a malformed packet) is decoded by
`decode_output_packet`, and is part of no series.

Invariant: `decode_series` accepts and refuses exactly what `decode_output_packet` does, with equal results.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandemfeed.feedcore.wire.output_packet import (
    FROM_ACTIVE_BIT,
    OUTPUT_FRAME_SIZE,
    OUTPUT_HEADER_SIZE,
    OUTPUT_LAYOUT,
    OUTPUT_MAGIC,
    OUTPUT_VERSION,
    RETRANSMISSION_BIT,
    RUN_LAYOUT,
    RUN_SIZE,
    OutputPacket,
    decode_output_packet,
)
from tandemfeed.feedcore.wire.position import SEQ_MAX
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal

HEAD_SIZE = OUTPUT_HEADER_SIZE + RUN_SIZE  # of a packet with one run: what is checked with numpy
_HEADER, _RUN = OUTPUT_LAYOUT.dtype(), RUN_LAYOUT.dtype()
_SHARED = ["feed_id", "channel_id", "adapter_id", "session", "epoch"]  # by all packets of a series
Columns: TypeAlias = NDArray[np.void]


class PacketSeries:
    """At least two retransmitted packets of one adapter, channel, session and epoch, of one run each. Each begins where
    the former ends, in `input_seq` and `message_seq`, and where the former one of its source stream ends in
    `source_seq`. Nothing in it is provisional or a source gap.

    Args:
        datagrams: the packets; all of them were checked.
        headers, runs: of each.

    Attributes:
        first_input_seqs, first_message_seqs, message_counts: of each packet.
        end_input_seq, end_message_seq: of the last packet.
        first_source_seqs, end_source_seqs: by source stream; the streams are the same.
    """

    def __init__(self, datagrams: Sequence[bytes], headers: Columns, runs: Columns) -> None:
        self._datagrams = datagrams
        shared: tuple[int, int, int, int, int] = headers[0][_SHARED].item()
        self.feed_id, self.channel_id, self.adapter_id, self.session, self.epoch = shared
        self.first_input_seqs: list[int] = headers["first_input_seq"].tolist()
        self.first_message_seqs: list[int] = headers["first_message_seq"].tolist()
        self.message_counts: list[int] = headers["message_count"].tolist()
        self.end_input_seq: int = self.first_input_seqs[-1] + int(runs["source_count"][-1])
        self.end_message_seq: int = self.first_message_seqs[-1] + self.message_counts[-1]
        self.first_source_seqs: dict[int, int] = {}
        self.end_source_seqs: dict[int, int] = {}
        streams, sources = runs["source_stream_id"], runs["first_source_seq"]
        for stream in np.unique(streams).tolist():
            places = np.flatnonzero(streams == stream)
            self.first_source_seqs[stream] = int(sources[places[0]])
            self.end_source_seqs[stream] = int(sources[places[-1]]) + int(runs["source_count"][places[-1]])

    def __len__(self) -> int:
        return len(self._datagrams)

    @property
    def first_input_seq(self) -> int:
        """Of the first packet."""
        return self.first_input_seqs[0]

    @property
    def first_message_seq(self) -> int:
        """Of the first packet."""
        return self.first_message_seqs[0]

    @property
    def message_count(self) -> int:
        """The messages of all packets."""
        return self.end_message_seq - self.first_message_seqs[0]

    @cached_property
    def packets(self) -> tuple[OutputPacket, ...]:
        """The packets. They are decoded when they are first used, because most readers need only the messages."""
        return tuple(map(decode_output_packet, self._datagrams))

    def packet(self, place: int) -> OutputPacket:
        """One of the packets, which keeps nothing of the others in memory."""
        return decode_output_packet(self._datagrams[place])

    def frames(self, place: int) -> memoryview:
        """The message frames of a packet, concatenated."""
        return memoryview(self._datagrams[place])[HEAD_SIZE:]


def packets_of(part: OutputPacket | PacketSeries) -> tuple[OutputPacket, ...]:
    """The packets of a part of a history."""
    return part.packets if isinstance(part, PacketSeries) else (part,)


def decode_series(datagrams: Sequence[bytes]) -> tuple[list[OutputPacket | PacketSeries], list[Refusal]]:
    """Decode and check plaintext packets: (the packets in order, those that continue each other as series, and why the
    others were refused)."""
    parts: list[OutputPacket | PacketSeries] = []
    refused: list[Refusal] = []
    headers, runs = _heads(datagrams)
    sizes = np.fromiter(map(len, datagrams), np.int64, len(datagrams))
    is_plain = _are_plain(headers, runs, sizes)
    begin = 0
    for end in [*_cuts(headers, runs, is_plain), len(datagrams)]:
        if end - begin > 1:
            chosen = slice(begin, end)
            parts.append(PacketSeries(datagrams[chosen], headers[chosen], runs[chosen]))
        elif end - begin == 1:
            try:
                parts.append(decode_output_packet(datagrams[begin]))
            except PacketRefused as because:
                refused.append(because.reason)
        begin = end
    return parts, refused


def _heads(datagrams: Sequence[bytes]) -> tuple[Columns, Columns]:
    """The header and first run of each packet; of one that is too short to have them, filled with zeros."""
    joined = b"".join([each[:HEAD_SIZE].ljust(HEAD_SIZE, b"\0") for each in datagrams])
    heads = np.frombuffer(joined, np.dtype([("header", _HEADER), ("run", _RUN)]))
    return heads["header"], heads["run"]


def _are_plain(headers: Columns, runs: Columns, sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which packets are whole, retransmitted, and have one run that is neither empty nor a source gap: all checks of
    `decode_output_packet`."""
    is_plain: NDArray[np.bool_] = (headers["magic"] == OUTPUT_MAGIC) & (headers["version"] == OUTPUT_VERSION)
    is_plain &= headers["flags"] | FROM_ACTIVE_BIT == RETRANSMISSION_BIT | FROM_ACTIVE_BIT
    is_plain &= headers["run_count"] == 1
    for numbers in (headers["first_message_seq"], headers["first_input_seq"], runs["first_source_seq"]):
        is_plain &= (numbers > 0) & (numbers <= SEQ_MAX)
    is_plain &= (runs["source_count"] > 0) & (runs["flags"] == 0)
    is_plain &= runs["message_count"] == headers["message_count"]
    is_plain &= HEAD_SIZE + headers["message_count"].astype(np.int64) * OUTPUT_FRAME_SIZE <= sizes
    return is_plain


def _cuts(headers: Columns, runs: Columns, is_plain: NDArray[np.bool_]) -> list[int]:
    """Where a packet does not continue the one before it, or one of them is not plain."""
    continues = is_plain[1:] & is_plain[:-1]
    for name in _SHARED:
        continues &= headers[name][1:] == headers[name][:-1]
    end_inputs = headers["first_input_seq"] + runs["source_count"]
    end_messages = headers["first_message_seq"] + headers["message_count"]
    continues &= headers["first_input_seq"][1:] == end_inputs[:-1]
    continues &= headers["first_message_seq"][1:] == end_messages[:-1]
    streams, end_sources = runs["source_stream_id"], runs["first_source_seq"] + runs["source_count"]
    order = np.argsort(streams, kind="stable")  # each stream's packets next to each other, in their order
    is_same_stream = streams[order][1:] == streams[order][:-1]
    is_torn = is_same_stream & (runs["first_source_seq"][order][1:] != end_sources[order][:-1])
    is_cut = np.zeros(len(headers), np.bool_)
    is_cut[order[1:][is_torn]] = True
    is_cut[1:] |= ~continues
    cuts: list[int] = np.flatnonzero(is_cut).tolist()
    return cuts
