"""Delivers only the granted symbols of a channel. Runs after the merge, so numbers, gaps and positions are unaffected.

The channel's key opens all of its messages. So this filter fulfils the contract of a grant, and protects nothing: what
must not be readable needs a channel, and thereby a key, of its own.

Never: decides per message in Python. A packet takes one comparison per run of messages of one type.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tandemfeed.feedcore.documents.message_model import PREFIX_SIZE, MessageModel
from tandemfeed.feedcore.documents.symbol_words import EVERY_SYMBOL, granted_values, symbol_columns
from tandemfeed.feedcore.sbe.messages import Column
from tandemfeed.feedcore.wire.output_packet import OutputPacket

Places = NDArray[np.int64]
_NOTHING: Places = np.empty(0, np.int64)


class SymbolFilter:
    """The filter of one channel.

    Args:
        field: the message field that has the symbol.
        words: the granted symbols, as words of topics.
        former: the filter that this one replaces; its count continues.

    Attributes:
        filtered_count: messages that were not delivered.
    """

    def __init__(self, model: MessageModel, field: str, words: Iterable[str], former: Self | None = None) -> None:
        self.filtered_count: int = 0 if former is None else former.filtered_count
        self._model = model
        self._columns = symbol_columns(model, field)
        chosen = set(words)
        self._has_every_symbol = EVERY_SYMBOL in chosen
        chosen.discard(EVERY_SYMBOL)
        self._values = {template: granted_values(column, chosen) for template, column in self._columns.items()}

    def select(self, packet: OutputPacket) -> tuple[OutputPacket, Places]:
        """The packet with only the granted messages in its payload, and their places among all its messages.

        The packet's numbers and runs stay those of all its messages. Messages of other schemas, which are tandemfeed's
        own, are kept; messages without the symbol field are not.
        """
        frames = memoryview(packet.payload)[packet.messages_offset :]
        kept: list[memoryview | bytes] = []
        places: list[Places] = []
        count = 0
        for message, length, run in self._model.stretches(frames):
            run_count = max(len(run) // length, 1) if length else 1
            if message is None:
                chosen = np.arange(run_count)
            elif (column := self._columns.get(message.template_id)) is None:
                chosen = _NOTHING
            else:
                chosen = np.flatnonzero(self._mask(message.template_id, column, length, run))
            if len(chosen) == run_count:
                kept.append(run)
            elif len(chosen):
                kept.append(np.frombuffer(run, f"V{length}")[chosen].tobytes())
            places.append(chosen + count)
            count += run_count
        if count != packet.message_count:  # an adapter framed its messages incorrectly
            kept, places = [], []
        selected = np.concatenate(places) if places else _NOTHING
        self.filtered_count += packet.message_count - len(selected)
        payload = b"".join((packet.payload[: packet.messages_offset], *kept))
        return packet._replace(payload=payload), selected

    def _mask(self, template: int, column: Column, length: int, run: memoryview) -> NDArray[np.bool_]:
        """For each message of a run: whether its symbol is granted."""
        count = len(run) // length
        if length < PREFIX_SIZE + column.offset + column.size:  # an older version of the schema, without the field
            return np.zeros(count, np.bool_)
        if self._has_every_symbol:
            return np.ones(count, np.bool_)
        granted = self._values[template]
        if not len(granted):
            return np.zeros(count, np.bool_)
        symbols = np.ndarray((count,), column.numpy_code("<"), run, PREFIX_SIZE + column.offset, (length,))
        nearest = np.searchsorted(granted, symbols)
        mask: NDArray[np.bool_] = granted[np.minimum(nearest, len(granted) - 1)] == symbols
        return mask
