"""The messages of many packets as one array for each type, gathered by place. Pure.

Where types alternate, a view of consecutive messages has two or three rows, so the views cost more than the work with
them. Here each type's frames are copied out of all packets at once: some numpy calls for each place in a packet, not
for each message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from tandemfeed.feedcore.documents.message_model import PREFIX_SIZE, FrameShape, MessageModel
from tandemfeed.feedcore.sbe.messages import MessageType
from tandemfeed.feedcore.wire.output_packet import OUTPUT_FRAME_SIZE
from tandemfeed.feedcore.wire.sbe_header import SBE_HEADER_SIZE

Rows = NDArray[np.void]
Places = NDArray[np.int64]  # the first bytes of frames
STEPPED_COUNT = 16  # fewer packets are divided one by one, because numpy would be slower
_LENGTH, _HEADER = np.dtype("<u2"), np.dtype(f"<u{SBE_HEADER_SIZE}")


def gather(model: MessageModel, payloads: Sequence[memoryview]) -> dict[MessageType, Rows]:
    """Copies of the messages of each type, in their order. Leaves out what `MessageModel.arrays` does.

    Args:
        payloads: the message frames of one packet each.
    """
    whole = b"".join(payloads)
    divide = _step if len(payloads) >= STEPPED_COUNT else _walk
    parts: dict[MessageType, list[tuple[Places, Rows]]] = {}
    for (message, rows), length, places in divide(model, whole, list(map(len, payloads))):
        if message is not None and rows is not None:
            frames = np.ndarray((len(whole) - length + 1,), f"V{length}", whole, 0, (1,))  # at each byte
            parts.setdefault(message, []).append((places, frames[places].view(rows)))
    return {message: _in_order(each) for message, each in parts.items()}


def _in_order(parts: list[tuple[Places, Rows]]) -> Rows:
    """One array of the messages of one type, of which each version of the schema is a part."""
    if len(parts) == 1:
        return parts[0][1]
    order = np.argsort(np.concatenate([places for places, _ in parts]))
    return np.concatenate([rows for _, rows in parts])[order]


Division = Iterator[tuple[FrameShape, int, Places]]  # the frames of each shape: their length, and where they begin


def _walk(model: MessageModel, whole: bytes, sizes: list[int]) -> Division:
    """Packet by packet."""
    found: dict[tuple[FrameShape, int], list[int]] = {}
    for start, end in zip(accumulate(sizes, initial=0), accumulate(sizes), strict=False):
        payload = memoryview(whole)[start:end]
        for shape, first, span_end, length in model.spans(payload):
            if shape.message is not None:
                found.setdefault((shape, length), []).extend(range(start + first, start + span_end, length))
    for (shape, length), places in found.items():
        yield shape, length, np.array(places)


def _step(model: MessageModel, whole: bytes, sizes: list[int]) -> Division:
    """The first frames of all packets, then the second ones, and so on."""
    ends = np.cumsum(sizes, dtype=np.int64)
    at = ends - sizes
    length_at = np.ndarray((max(len(whole) - _LENGTH.itemsize + 1, 0),), _LENGTH, whole, 0, (1,))
    found: list[Places] = []
    while len(at := at[has_frame := ends - at >= PREFIX_SIZE]):
        ends = ends[has_frame]
        lengths = length_at[at].astype(np.int64)
        found.append(at[(lengths >= PREFIX_SIZE) & (lengths <= ends - at)])
        at = at + np.maximum(lengths, OUTPUT_FRAME_SIZE)
    places = np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)
    header_at = np.ndarray((max(len(whole) - PREFIX_SIZE + 1, 0),), _HEADER, whole, OUTPUT_FRAME_SIZE, (1,))
    headers, lengths = header_at[places], length_at[places]
    while len(places):
        same = (headers == headers[0]) & (lengths == lengths[0])
        yield model.shape_at(whole, int(places[0])), int(lengths[0]), places[same]
        others = ~same
        places, headers, lengths = places[others], headers[others], lengths[others]
