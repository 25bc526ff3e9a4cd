"""Source streams that the adapter receives from a venue's own lines: a shell around the translation of their packets.

A line receives one multicast group of one stream; several lines of a stream fill each other's gaps. The engine's
requests go to the venue's request server, and the answers come in like any other packet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import zmq

from tandemfeed.adapter.conversion.formats.packets.packet_translation import PacketTranslation
from tandemfeed.feedcore.documents.source_layout import SourceFormat
from tandemfeed.feedcore.replica.effects import RequestSource
from tandemfeed.transport.multicast.groups import BadGroup
from tandemfeed.transport.multicast.sockets import Multicast
from tandemfeed.transport.request_socket import RequestSocket
from tandemfeed.v1 import common_pb2


@dataclass(frozen=True, slots=True)
class VenueLines:
    """The source streams are a venue's own. Each attribute has pairs of a source_stream_id and a value.

    Attributes:
        lines: groups, in addition to the feed's own group of each stream.
        request_servers: "IPV4:PORT" of the venue's request server; a stream without one requests nothing.
        channels: the channel of the packets' header that the stream consists of.
    """

    lines: tuple[tuple[int, str], ...] = ()
    request_servers: tuple[tuple[int, str], ...] = ()
    channels: tuple[tuple[int, str], ...] = ()

    def check(self, feed: common_pb2.FeedDescription) -> None:
        """Check that the feed has the streams.

        Raises:
            BadGroup: the feed does not have one of them, or a channel is not a number.
        """
        known = [stream.source_stream_id for stream in feed.source_streams]
        given = {"--line": self.lines, "--request-server": self.request_servers, "--channel": self.channels}
        for option, pairs in given.items():
            for stream, value in pairs:
                if stream not in known:
                    streams = ", ".join(map(str, known))
                    raise BadGroup(f"{option} {stream}={value}: feed {feed.name} has source streams {streams}")
        for stream, channel in self.channels:
            if not channel.isdigit():
                raise BadGroup(f"--channel {stream}={channel}: a channel must be a number")


class Heard(Protocol):
    """A source of a line's datagrams."""

    @property
    def socket(self) -> Any:
        """The socket to poll."""

    def receive(self) -> bytes | None:
        """The next datagram; None if there is none."""

    def close(self) -> None:
        """Stop hearing."""


class VenueLine:
    """One line of a stream, or the answers to its requests, as source packets."""

    def __init__(self, heard: Heard, translation: PacketTranslation) -> None:
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


class VenueSource:
    """All streams of a feed.

    Args:
        formats: the source format of each source stream.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        multicast: Multicast,
        feed: common_pb2.FeedDescription,
        formats: Mapping[int, SourceFormat],
        options: VenueLines,
    ) -> None:
        options.check(feed)
        self.lines: list[VenueLine] = []
        self._requests: dict[int, tuple[PacketTranslation, RequestSocket]] = {}
        servers, channels = dict(options.request_servers), dict(options.channels)
        for each in feed.source_streams:
            stream = each.source_stream_id
            channel = int(channels[stream]) if stream in channels else None
            translation = PacketTranslation(formats[stream], feed.feed_id, stream, feed.session, channel)
            for group in (each.group, *_of(stream, options.lines)):
                self.lines.append(VenueLine(multicast.receiver(context, group), translation))
            if stream in servers:
                asking = RequestSocket(context, multicast.interface, servers[stream])
                self._requests[stream] = translation, asking
                self.lines.append(VenueLine(asking, translation))

    def request(self, effect: RequestSource) -> None:
        """Request missing messages from the venue. The engine repeats requests that get no answer."""
        found = self._requests.get(effect.source_stream_id)
        if found is not None:
            translation, asking = found
            for first, end in effect.ranges:
                if (datagram := translation.request(first, end - 1)) is not None:
                    asking.send(datagram)


def _of(stream: int, pairs: Iterable[tuple[int, str]]) -> list[str]:
    return [value for each, value in pairs if each == stream]
