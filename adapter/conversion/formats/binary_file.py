"""BinaryFILE: a file of a day's messages, each after its length (u16, big-endian); a zero length ends the session.

In some recordings all lengths are zero. Then the message type determines the length, and the reader fills it in, so
that its frames are as the format defines them.
"""

from __future__ import annotations

from collections.abc import Iterator

from tandemfeed.adapter.conversion.formats.chunks import MESSAGE_COUNT_MAX, FormatError, FrameChunk
from tandemfeed.feedcore.documents.source_layout import SourceFormat

LENGTH_SIZE = 2


def read_binary_file(
    data: bytes, source_format: SourceFormat, messages_max: int = MESSAGE_COUNT_MAX
) -> Iterator[FrameChunk]:
    """The messages of a file, in chunks, numbered from 1.

    Args:
        data: the file's bytes, decompressed.
        source_format: provides the lengths of messages if the file does not.
        messages_max: the number of messages per chunk.

    Raises:
        FormatError: with the offset; a truncated last message is an error too.
    """
    if len(data) > LENGTH_SIZE and not any(data[:LENGTH_SIZE]):
        data = _with_lengths(data, source_format)
    first, start, offset, count = 1, 0, 0, 0
    while offset < len(data):
        length = int.from_bytes(data[offset : offset + LENGTH_SIZE], "big")
        if length == 0 and offset + LENGTH_SIZE == len(data):
            break  # end of session
        end = offset + LENGTH_SIZE + length
        if length == 0 or end > len(data):
            raise FormatError(f"offset {offset}: a message has {length} bytes, but only {len(data) - offset} are left")
        count += 1
        offset = end
        if count == messages_max:
            yield FrameChunk(data[start:offset], count, first)
            first, start, count = first + count, offset, 0
    if count:
        yield FrameChunk(data[start:offset], count, first)


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
