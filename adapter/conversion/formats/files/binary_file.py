"""BinaryFILE: a file of a day's messages, each framed as the source format's document says; for ITCH, each after its
length (u16, big-endian). A zero length ends the session.

In some recordings all lengths are zero. Then the message type determines the length, and the reader fills it in, so
that its frames are as the format defines them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from tandemfeed.adapter.conversion.formats.chunks import MESSAGE_COUNT_MAX, FormatError, FrameChunk
from tandemfeed.adapter.conversion.formats.frames.frame_walk import FrameWalk
from tandemfeed.feedcore.documents.source_layout import SourceFormat

LENGTH_SIZE = 2
BLOCK_SIZE = 4 << 20  # read at a time, so that a file of any size needs little memory


def read_binary_file(
    file: BinaryIO, source_format: SourceFormat, messages_max: int = MESSAGE_COUNT_MAX, block_size: int = BLOCK_SIZE
) -> Iterator[FrameChunk]:
    """The messages of a file, in chunks, numbered from 1.

    Args:
        file: the messages, decompressed.
        source_format: provides the framing, and the lengths of messages if the file does not.
        messages_max: the number of messages per chunk.
        block_size: the number of bytes to read at a time.

    Raises:
        FormatError: with the offset; a truncated last message is an error too.
    """
    data = file.read(max(block_size, LENGTH_SIZE + 1))
    if len(data) > LENGTH_SIZE and not any(data[:LENGTH_SIZE]):
        data = _with_lengths(data + file.read(), source_format)  # nothing is left to read
    walk = FrameWalk(source_format.framing)
    sequence, offset = 1, 0  # of the first message in `data`, in the whole file
    while data:
        view, start, more = np.frombuffer(data, np.uint8), 0, file.read(block_size)
        while True:
            end, count = walk.skip(view, start, messages_max)
            if count == 0 or (count < messages_max and more):  # the next block may complete this chunk
                break
            yield FrameChunk(data[start:end], count, sequence)
            sequence, start = sequence + count, end
        if not more:
            _check_end(data[start:], offset + start, source_format)
            return
        offset, data = offset + start, data[start:] + more


def _check_end(rest: bytes, offset: int, source_format: SourceFormat) -> None:
    """Check what follows the last message: nothing, or the zero length that ends a session."""
    framing = source_format.framing
    if not rest or rest == bytes(LENGTH_SIZE):
        return
    if not any(rest[:LENGTH_SIZE]):
        what = f"a length of 0 ends the session here, but {len(rest) - LENGTH_SIZE} bytes follow"
        raise FormatError(f"offset {offset}: {what}; convert what follows as a file of its own")
    if len(rest) < framing.size_min:
        raise FormatError(f"offset {offset}: {len(rest)} bytes are left, fewer than a message has")
    length = framing.length
    number = int.from_bytes(rest[length.offset : length.end], "big" if framing.is_big_endian else "little")
    size = number * framing.length_unit + framing.length_adds
    if size < framing.size_min:
        raise FormatError(f"offset {offset}: a message has {size} bytes, fewer than {framing.size_min}")
    raise FormatError(f"offset {offset}: a message has {size} bytes, but only {len(rest)} are left")


def _with_lengths(data: bytes, source_format: SourceFormat) -> bytes:
    """The file with each message's length, determined by its type, before the message."""
    sizes = {message.type_id: message.size for message in source_format.messages.values()}
    out = bytearray(data)
    offset = 0
    while offset + LENGTH_SIZE < len(data):
        if any(data[offset : offset + LENGTH_SIZE]):
            raise FormatError(f"offset {offset}: a length that is not zero, in a file whose lengths are zero")
        kind = data[offset + LENGTH_SIZE]
        size = sizes.get(kind)
        if size is None:
            raise FormatError(f"offset {offset}: unknown message type {bytes([kind])!r}")
        if offset + LENGTH_SIZE + size > len(data):
            raise FormatError(
                f"offset {offset}: a message of type {bytes([kind])!r} has {size} bytes, "
                f"but only {len(data) - offset - LENGTH_SIZE} are left"
            )
        out[offset : offset + LENGTH_SIZE] = size.to_bytes(LENGTH_SIZE, "big")
        offset += LENGTH_SIZE + size
    return bytes(out)
