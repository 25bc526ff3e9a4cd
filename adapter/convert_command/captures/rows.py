"""The rows in which the compiled walks describe datagrams: one per datagram in a block of bytes.

Each walk fills in more of a row's columns. All places are offsets in the block.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Bytes: TypeAlias = NDArray[np.uint8]
Words: TypeAlias = NDArray[np.int64]

# Columns of a row.
(
    AT_NS,  # when it was captured
    START,  # of the UDP payload
    SIZE,
    FLOW,  # its destination
    FRAME,  # the number of its frame in the file, from 1
    STATUS,
    STREAM,  # the numbered stream that it belongs to
    SEQUENCE,  # of its first message, or of the packet
    COUNT,  # messages
    FRAMES,  # where they begin
    SENT_NS,  # the venue's clock; 0: none
) = range(11)
COLUMNS = 11

# Values of STATUS.
(
    READ,  # its header and its messages agree
    APART,  # as READ, but never joined with others, because the converter does not find the end of a message
    UNREAD,  # left to the decoder in Python, which knows what is wrong
    SKIPPED,  # sent to a destination that is not read
) = range(4)
