"""The UDP datagrams of a capture, a block at a time: the compiled walk, and the Python reader where the walk stops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import numpy as np

from tandemfeed.adapter.conversion.formats.captures.capture import CaptureReader, Datagram
from tandemfeed.adapter.conversion.formats.captures.capture_file import Frame, Interface
from tandemfeed.adapter.convert_command.captures.keys import FLAG, KEY_SIZE, KeyTable
from tandemfeed.adapter.convert_command.captures.rows import AT_NS, COLUMNS, FLOW, FRAME, SIZE, Bytes, Words
from tandemfeed.adapter.convert_command.captures.walk_kernels import (
    FRAMES,
    OTHERS,
    SECONDS_MAX,
    TICKS_PER_SECOND_MAX,
    walk_pcap,
    walk_pcapng,
)

BLOCK_SIZE = 4 << 20  # read at a time, so that a capture of any size needs little memory
ROWS_MAX = 32_768  # datagrams of a block
NANOSECONDS = 1_000_000_000
TIME_MAX = (1 << 63) - 1  # of 64 bits; only damage gives times beyond it


class Datagrams(NamedTuple):
    """Consecutive datagrams of a capture.

    Attributes:
        data: the bytes that the rows refer to; valid until the next datagrams are read.
        rows: shape (datagrams, COLUMNS).
    """

    data: Bytes
    rows: Words


class _BlockFile:
    """A file of which blocks are in memory, for the compiled walk; what `read` returns comes from them first.

    Attributes:
        data, at, end: the bytes in memory are `data[at:end]`.
    """

    def __init__(self, file: BinaryIO, block_size: int) -> None:
        self._file = file
        self.data: Bytes = np.empty(block_size, np.uint8)
        self.at = self.end = 0

    def read(self, size: int) -> bytes:
        """The next bytes; fewer at the end of the file."""
        taken = self.data[self.at : min(self.at + size, self.end)].tobytes()
        self.at += len(taken)
        return taken if len(taken) == size else taken + self._file.read(size - len(taken))

    def read_on(self) -> bool:
        """Move what is left to the front and read on; False: nothing was read."""
        left = self.data[self.at : self.end].copy()
        self.data[: len(left)] = left
        self.at, self.end = 0, len(left)
        room = self.data[self.end :]
        count = self._file.readinto(room.data) if len(room) else 0  # type: ignore[attr-defined]
        self.end += count
        return bool(count)


class CaptureWalk:
    """The datagrams of one capture.

    Args:
        file: the capture, decompressed.
        flows: numbers the destinations, also over several captures.

    Attributes:
        reader: reads what the compiled walk leaves; it counts the frames.
    """

    def __init__(self, file: BinaryIO, flows: KeyTable, block_size: int = BLOCK_SIZE, rows_max: int = ROWS_MAX) -> None:
        self._blocks, self._flows = _BlockFile(file, block_size), flows
        self.reader = CaptureReader(self._blocks)  # type: ignore[arg-type]  # it only reads
        self._rows: Words = np.zeros((rows_max, COLUMNS), np.int64)
        self._counts: Words = np.zeros(2, np.int64)

    def __iter__(self) -> Iterator[Datagrams]:
        """Raises FormatError, with the offset, if the file is damaged or not a capture."""
        for frame in self.reader.frames:
            datagram = self.reader.datagram(frame)
            if datagram is not None:
                yield self._alone(frame, datagram)
            yield from self._walk()

    def compile(self, *, is_pcapng: bool) -> None:
        """Compile the walk over one kind of file, before anything is read."""
        self.reader.frames.is_pcapng = is_pcapng
        self._step()

    def _walk(self) -> Iterator[Datagrams]:
        """Walk as far as there are whole records that the kernel reads."""
        while True:
            self._flows.make_room()
            count, is_short = self._step()
            if count:
                yield Datagrams(self._blocks.data, self._rows[:count])
            elif not (is_short and self._blocks.read_on()):
                return

    def _step(self) -> tuple[int, bool]:
        """Walk over the records in memory; returns (how many rows they fill, True if more bytes help)."""
        blocks, frames, reader, flows = self._blocks, self.reader.frames, self.reader, self._flows
        self._counts[FRAMES], self._counts[OTHERS] = reader.frame_count, reader.other_count
        settings = np.array([frames.order == ">", frames.unit_ns, frames.link], np.int64)
        places = blocks.data, blocks.at, blocks.end, settings
        tables = self._rows, flows.keys, flows.slots, flows.counts, self._counts
        if frames.is_pcapng:
            interfaces = _interface_rows(frames.interfaces)
            at, count, is_short = walk_pcapng(*places, interfaces, len(frames.interfaces), *tables)
        else:
            at, count, is_short = walk_pcap(*places, *tables)
        frames.offset += at - blocks.at
        blocks.at = at
        reader.frame_count, reader.other_count = int(self._counts[FRAMES]), int(self._counts[OTHERS])
        return int(count), bool(is_short)

    def _alone(self, frame: Frame, datagram: Datagram) -> Datagrams:
        """The row of one datagram that Python read."""
        address = datagram.destination
        key = address.ljust(16, b"\0") + datagram.destination_port.to_bytes(2, "big")
        row = np.zeros((1, COLUMNS), np.int64)
        row[0, AT_NS] = max(min(frame.captured_at_ns, TIME_MAX), -TIME_MAX)
        row[0, SIZE] = len(datagram.payload)
        row[0, FLOW] = self._flows.add(key.ljust(FLAG, b"\0") + bytes([len(address)]))
        row[0, FRAME] = self.reader.frame_count
        return Datagrams(np.frombuffer(bytearray(datagram.payload), np.uint8), row)


def _interface_rows(interfaces: list[Interface]) -> Words:
    """The interfaces for the kernel; it leaves what it cannot compute with 64 bits."""
    rows = np.zeros((max(len(interfaces), 1), 3), np.int64)
    for row, each in zip(rows, interfaces, strict=False):
        is_far = abs(each.offset_seconds) > SECONDS_MAX
        ticks = min(each.ticks_per_second, TICKS_PER_SECOND_MAX + 1)
        row[:] = ticks if not is_far else TICKS_PER_SECOND_MAX + 1, 0, each.link
        row[1] = 0 if is_far else each.offset_seconds * NANOSECONDS
    return rows


def destination(key: bytes) -> tuple[bytes, int]:
    """(address, port) of a flow's key."""
    assert len(key) == KEY_SIZE
    return key[: key[FLAG]], int.from_bytes(key[16:18], "big")
