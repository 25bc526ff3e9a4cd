"""The Simple Open Framing Header that may precede a message: total length and encoding, always big-endian."""

from __future__ import annotations

import struct

from tandemfeed.client_lib.messages.sbe_reading import SbeReadError
from tandemfeed.feedcore.sbe import Schema

FRAMING_HEADER = struct.Struct(">IH")
ENCODING_BIG_ENDIAN = 0x5BE0
ENCODING_LITTLE_ENDIAN = 0xEB50


def add_framing(message: bytes, schema: Schema) -> bytes:
    """The message with a framing header before it."""
    encoding = ENCODING_BIG_ENDIAN if schema.is_big_endian else ENCODING_LITTLE_ENDIAN
    return FRAMING_HEADER.pack(FRAMING_HEADER.size + len(message), encoding) + message


def remove_framing(data: bytes | memoryview, schema: Schema) -> memoryview:
    """The first message of `data`, without its framing header.

    Raises:
        SbeReadError: truncated, or of another encoding.
    """
    view = memoryview(data)
    if len(view) < FRAMING_HEADER.size:
        raise SbeReadError(f"framing header: needs {FRAMING_HEADER.size} bytes, {len(view)} are left")
    length, encoding = FRAMING_HEADER.unpack_from(view)
    wanted = ENCODING_BIG_ENDIAN if schema.is_big_endian else ENCODING_LITTLE_ENDIAN
    if encoding != wanted:
        raise SbeReadError(f"framing header: encoding {encoding:#06x}, the schema's is {wanted:#06x}")
    if not FRAMING_HEADER.size <= length <= len(view):
        raise SbeReadError(f"framing header: message length {length}, {len(view)} bytes are there")
    return view[FRAMING_HEADER.size : length]
