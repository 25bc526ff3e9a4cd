"""A line of a source stream that the feed's source seals: opens its packets before they reach the engine."""

from __future__ import annotations

from tandemfeed.feedcore.counters import CounterSet
from tandemfeed.feedcore.wire.refusal import PacketRefused
from tandemfeed.transport.multicast.sockets import MulticastReceiver
from tandemfeed.transport.sealing.source_sealing import SourceOpener


class SealedLine:
    """A source line that refuses and counts packets that the feed's source did not seal."""

    def __init__(self, heard: MulticastReceiver, opener: SourceOpener, counters: CounterSet) -> None:
        self._heard, self._opener, self._counters = heard, opener, counters
        self.socket = heard.socket

    def receive(self) -> bytes | None:
        """The next source packet, opened; None if there is none."""
        while (datagram := self._heard.receive()) is not None:
            try:
                return self._opener.open(datagram)
            except PacketRefused as refused:
                self._counters.refuse(refused.reason)
        return None

    def close(self) -> None:
        """Stop hearing."""
        self._heard.close()
