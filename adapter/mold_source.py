"""Source streams that the adapter receives directly from an exchange over MoldUDP64: a shell around the translation.

A line receives one multicast group of one stream; several lines of a stream fill each other's gaps. The engine's
requests go to the venue's request server, and the answers come in like any other packet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import zmq

from tandemfeed.adapter.conversion.formats.moldudp64 import MoldTranslation
from tandemfeed.feedcore.replica.effects import RequestSource
from tandemfeed.transport.dgram import MulticastReceiver
from tandemfeed.transport.request_socket import RequestSocket


class Heard(Protocol):
    """A source of a line's datagrams."""

    @property
    def socket(self) -> Any:
        """The socket to poll."""

    def receive(self) -> bytes | None:
        """The next datagram; None if there is none."""

    def close(self) -> None:
        """Stop hearing."""


class MoldLine:
    """One line of a stream, or the answers to its requests, as source packets."""

    def __init__(self, heard: Heard, translation: MoldTranslation) -> None:
        self._heard, self._translation = heard, translation
        self.socket = heard.socket

    def receive(self) -> bytes | None:
        """The next source packet; None if no datagram is left."""
        while (datagram := self._heard.receive()) is not None:
            packet = self._translation.source_packet(datagram)
            if packet is not None:
                return packet
        return None

    def close(self) -> None:
        """Stop hearing."""
        self._heard.close()


class MoldSource:
    """All MoldUDP64 streams of a feed.

    Args:
        groups: source_stream_id -> the multicast groups of its lines.
        session: trading day, YYYYMMDD.
        request_servers: source_stream_id -> "IPV4:PORT" of the venue's request server; a stream without one requests
            nothing.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        interface: str,
        groups: Mapping[int, Sequence[str]],
        *,
        feed_id: int,
        session: int,
        request_servers: Mapping[int, str],
    ) -> None:
        self.lines: list[MoldLine] = []
        self._requests: dict[int, tuple[MoldTranslation, RequestSocket]] = {}
        for stream, its_groups in groups.items():
            translation = MoldTranslation(feed_id, stream, session)
            self.lines += [MoldLine(MulticastReceiver(context, interface, group), translation) for group in its_groups]
            server = request_servers.get(stream)
            if server is not None:
                asking = RequestSocket(context, interface, server)
                self._requests[stream] = translation, asking
                self.lines.append(MoldLine(asking, translation))

    def request(self, effect: RequestSource) -> None:
        """Request missing messages from the venue. The engine repeats requests that get no answer."""
        found = self._requests.get(effect.source_stream_id)
        if found is not None:
            translation, asking = found
            datagram = translation.request(effect.first_source_seq, effect.last_source_seq)
            if datagram is not None:
                asking.send(datagram)
