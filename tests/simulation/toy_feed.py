"""A feed small enough to predict: source messages of 9 bytes, a converter with state, and its expected output.

A message is (symbol u8, value u64). A value divisible by 7 becomes no message, otherwise one divisible by 5 becomes two
messages, and any other one message. The output carries the running sum of its symbol, so a skipped or repeated message
shows in all later output of the symbol. Each symbol belongs to one source stream: stream s owns the symbols congruent
to s modulo the number of streams.

That is table 0. Table 1 makes other messages of the same source messages: none of a value divisible by 5, two of one
divisible by 3, and its sums count each value three times.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from random import Random

import numpy as np
from numpy.typing import NDArray

from tandemfeed.feedcore.replica.output.converter import Converted
from tandemfeed.feedcore.wire.output_packet import OUTPUT_FRAME, OUTPUT_FRAME_SIZE
from tandemfeed.feedcore.wire.source_packet import (
    SOURCE_FRAME,
    SOURCE_FRAME_SIZE,
    SOURCE_HEADER_SIZE,
    encode_source_header,
)

BODY = struct.Struct("<BQ")
BUCKET = struct.Struct("<QQQ")  # symbol, sum, count
OUT_BODY = struct.Struct("<HHHHBQQB")
SOURCE_MESSAGE_SIZE = SOURCE_FRAME_SIZE + BODY.size
BODY_IDENTITY_SIZE = struct.calcsize("<HHHHBQ")  # the part of an output body that depends only on its source message
OUT_MESSAGE_SIZE = OUTPUT_FRAME_SIZE + OUT_BODY.size
FEED_ID = 7
SESSION = FIRST_SESSION = 20261121
SYMBOLS = 16
WEIGHTS = (1, 3)  # by table: how often a value counts in the sums


def make_messages(chance: Random, stream: int, stream_count: int, count: int) -> list[tuple[int, int]]:
    """`count` source messages (symbol, value) of a stream."""
    symbols = [symbol for symbol in range(SYMBOLS) if symbol % stream_count == stream % stream_count]
    return [(chance.choice(symbols), chance.randrange(1, 1 << 32)) for _ in range(count)]


def encode_source(
    stream: int,
    first_seq: int,
    messages: list[tuple[int, int]],
    sent_at_ns: int,
    flags: int,
    session: int = SESSION,
) -> bytes:
    """A source packet, or a heartbeat if there are no messages."""
    header = encode_source_header(
        feed_id=FEED_ID,
        source_stream_id=stream,
        message_count=len(messages),
        session=session,
        first_source_seq=first_seq,
        sent_at_ns=sent_at_ns,
        flags=flags,
    )
    frames = [SOURCE_FRAME.pack(SOURCE_MESSAGE_SIZE, 1) + BODY.pack(symbol, value) for symbol, value in messages]
    return header + b"".join(frames)


class ToyConverter:
    """A minimal `feedcore.replica.output.converter.Converter`. Args: table: 0 or 1."""

    def __init__(self, table: int = 0) -> None:
        self.table = table
        self.sums = [0] * SYMBOLS
        self.counts = [0] * SYMBOLS

    def check(self, datagram: bytes) -> bool:
        return (len(datagram) - SOURCE_HEADER_SIZE) % SOURCE_MESSAGE_SIZE == 0

    def convert(
        self, datagram: bytes, skip: int, count: int, out: NDArray[np.uint8], start: int, end: int
    ) -> Converted:
        view, offset, written = out.data, start, 0
        for index in range(skip, skip + count):
            symbol, value = BODY.unpack_from(
                datagram, SOURCE_HEADER_SIZE + index * SOURCE_MESSAGE_SIZE + SOURCE_FRAME_SIZE
            )
            copies = copies_of(value, self.table)
            if offset + copies * OUT_MESSAGE_SIZE > end:
                return Converted(index - skip, written, offset)
            self.count(symbol, value)
            for copy in range(copies):
                OUTPUT_FRAME.pack_into(view, offset, OUT_MESSAGE_SIZE, index - skip)
                body = self.body(symbol, value, copy)
                view[offset + OUTPUT_FRAME_SIZE : offset + OUT_MESSAGE_SIZE] = memoryview(body)
                offset += OUT_MESSAGE_SIZE
                written += 1
        return Converted(count, written, offset)

    def count(self, symbol: int, value: int) -> None:
        """Change the state by a source message."""
        self.sums[symbol] = (self.sums[symbol] + value * WEIGHTS[self.table]) & 0xFFFF_FFFF_FFFF
        self.counts[symbol] += 1

    def body(self, symbol: int, value: int, copy: int) -> bytes:
        """The bytes of an output message, given the state after its source message."""
        return OUT_BODY.pack(18, 1 + self.table, 1, 0, symbol, value, self.sums[symbol], copy)

    def digests(self) -> NDArray[np.uint64]:
        mixed = [zlib.crc32(b"%d %d" % pair) for pair in zip(self.sums, self.counts, strict=True)]
        return np.array(mixed, np.uint64)

    def snapshot(self) -> bytes:
        return struct.pack(f"<{2 * SYMBOLS}Q", *self.sums, *self.counts)

    def restore(self, snapshot: bytes) -> None:
        if len(snapshot) != 16 * SYMBOLS:
            raise ValueError(f"{len(snapshot)} bytes are not a state of the toy feed")
        values = struct.unpack(f"<{2 * SYMBOLS}Q", snapshot)
        self.sums, self.counts = list(values[:SYMBOLS]), list(values[SYMBOLS:])

    def snapshot_buckets(self, buckets: Sequence[int]) -> bytes:
        return b"".join(BUCKET.pack(bucket, self.sums[bucket], self.counts[bucket]) for bucket in buckets)

    def restore_buckets(self, data: bytes) -> None:
        if len(data) % BUCKET.size:
            raise ValueError(f"{len(data)} bytes are not buckets of the toy feed")
        found = list(BUCKET.iter_unpack(data))
        if any(bucket >= SYMBOLS for bucket, _, _ in found):
            raise ValueError("the toy feed has no such bucket")
        for bucket, total, count in found:
            self.sums[bucket], self.counts[bucket] = total, count


def state_after(
    messages: dict[int, list[tuple[int, int]]], skipped: set[tuple[int, int]], before: bytes = b"", table: int = 0
) -> bytes:
    """The expected `ToyConverter.snapshot` after these messages of each stream, without the skipped ones.

    Args:
        skipped: (source_stream_id, source_seq) declared lost.
        before: the state before the messages; empty: the initial state.
    """
    converter = ToyConverter(table)
    if before:
        converter.restore(before)
    for stream, rows in messages.items():
        for source_seq, (symbol, value) in enumerate(rows, 1):
            if (stream, source_seq) not in skipped:
                converter.count(symbol, value)
    return converter.snapshot()


def copies_of(value: int, table: int = 0) -> int:
    """How many application messages a source message becomes."""
    none, two = ((7, 5), (5, 3))[table]
    return 0 if value % none == 0 else 2 if value % two == 0 else 1


def expected_bodies(messages: list[tuple[int, int]], converter: ToyConverter) -> list[list[bytes]]:
    """The expected bodies for each source message of one stream, in order.

    Args:
        converter: in the state before the messages.
    """
    bodies = []
    for symbol, value in messages:
        converter.count(symbol, value)
        copies = range(copies_of(value, converter.table))
        bodies.append([converter.body(symbol, value, copy) for copy in copies])
    return bodies
