"""An adapter receives a venue's own lines over real sockets, by its documents: loss, and a request server."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from tandemfeed.adapter.cli import main as run_adapter
from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.conversion.formats.packets.moldudp64 import (
    MOLD_HEADER,
    encode_end_of_session,
    encode_mold_packet,
    encode_mold_request,
)
from tandemfeed.adapter.conversion.formats.packets.packet_translation import PacketTranslation
from tandemfeed.adapter.venue_source import VenueLines, VenueSource
from tandemfeed.client_lib import Batch, connect
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.documents.source_layout import SourceFormat
from tandemfeed.feedcore.replica.effects import RequestSource
from tandemfeed.feedcore.replica.input.source_tracker import SourceTracker, TrackerConfig
from tandemfeed.feedcore.wire.source_packet import SourceFlag, decode_source_packet
from tandemfeed.transport.multicast.groups import BadGroup
from tandemfeed.transport.multicast.sockets import Multicast
from tandemfeed.transport.multicast.zeromq import ZeromqSender
from tandemfeed.transport.request_socket import RequestSocket, parse_server
from tandemfeed.v1 import common_pb2
from tests.adapter.processes.adapter_processes import AdapterUnderTest
from tests.admin_server.cluster_files import running_server, secret_of

LOOPBACK = "127.0.0.1"
GROUPS = ["239.192.78.1:17101", "239.192.78.2:17102"]
SESSION, DAY, FEED, STREAM = b"20261121AA", 20261121, 3, 7
TOTAL, PER_PACKET = 600, 6
GIVE_UP_S = 20


def message(number: int) -> bytes:
    return b"m%d" % number


def packet(first: int, last: int, session: bytes = SESSION) -> bytes:
    return encode_mold_packet(session, first, [message(number) for number in range(first, last + 1)])


def itch() -> SourceFormat:
    return load_source_format(document("itch50.xml"))


def receiver(context: zmq.Context[Any], lines: VenueLines) -> VenueSource:
    stream = common_pb2.SourceStreamDescription(source_stream_id=STREAM, group=GROUPS[0])
    feed = common_pb2.FeedDescription(name="equities", feed_id=FEED, session=DAY, source_streams=[stream])
    return VenueSource(context, Multicast(LOOPBACK), feed, {STREAM: itch()}, lines)


class Venue:
    """A request server that has every message up to `TOTAL` and answers each request with one packet."""

    def __init__(self, packet: Callable[[int, int], bytes] = packet) -> None:
        self._packet = packet
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((LOOPBACK, 0))
        self.address = f"{LOOPBACK}:{self._socket.getsockname()[1]}"
        self.asked: list[tuple[int, int]] = []
        self.askers: list[tuple[str, int]] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            data, who = self._socket.recvfrom(100)
            if not data:
                return
            session, first, count = MOLD_HEADER.unpack(data)
            assert session == SESSION
            self.asked.append((first, count))
            self.askers.append(who)
            self._socket.sendto(self._packet(first, min(first + count - 1, first + 20, TOTAL)), who)

    def close(self) -> None:
        self._socket.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    made: zmq.Context[Any] = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def venue() -> Iterator[Venue]:
    made = Venue()
    yield made
    made.close()


def test_messages_that_both_lines_lost_come_from_the_venue_and_every_message_arrives_once(
    context: zmq.Context[Any], venue: Venue
) -> None:
    source = receiver(context, VenueLines(((STREAM, GROUPS[1]),), ((STREAM, venue.address),)))
    sender = ZeromqSender(context, LOOPBACK)
    tracker = SourceTracker(STREAM, TrackerConfig())
    tracker.anchor(1, 0)
    poller = zmq.Poller()
    seen: list[int] = []
    for line in source.lines:
        poller.register(line.socket, zmq.POLLIN)
    by_socket = {line.socket: line for line in source.lines}
    unsent = [(first, first + PER_PACKET - 1) for first in range(1, TOTAL, PER_PACKET)]
    until = time.monotonic() + GIVE_UP_S
    while len(seen) < TOTAL and time.monotonic() < until:
        if unsent:
            first, last = unsent.pop(0)
            for place, group in enumerate(GROUPS):
                is_lost = first % 5 == place or first % 7 == 0 or last == TOTAL
                if not is_lost:
                    sender.send(group.encode(), packet(first, last))
        else:
            sender.send(GROUPS[1].encode(), encode_end_of_session(SESSION, TOTAL + 1))
        for handle, _ in poller.poll(2):
            while (datagram := by_socket[handle].receive()) is not None:
                found = decode_source_packet(datagram, FEED)
                assert (found.source_stream_id, found.session, found.sent_at_ns) == (STREAM, DAY, 0)
                for part in tracker.on_packet(found, 0, time.monotonic_ns()):
                    seen += range(part.first_source_seq, part.first_source_seq + part.message_count)
        if (request := tracker.on_timer(time.monotonic_ns())) is not None:
            source.request(request)
    assert seen == list(range(1, TOTAL + 1))
    assert venue.asked
    for line in source.lines:
        line.close()


def test_heartbeats_and_the_end_of_the_session_reach_the_source_stream() -> None:
    translation = PacketTranslation(itch(), FEED, STREAM, DAY, None)
    assert translation.request(1, 5) is None, "the name of the session is not yet known"
    packets = [packet(4, 5), encode_mold_packet(SESSION, 6, []), encode_end_of_session(SESSION, 6)]
    made = [decode_source_packet(translation.source_packet(each) or b"", FEED) for each in packets]
    assert [(each.first_source_seq, each.message_count) for each in made] == [(4, 2), (6, 0), (6, 0)]
    assert [each.flags for each in made] == [0, SourceFlag.HEARTBEAT, SourceFlag.HEARTBEAT | SourceFlag.END_OF_STREAM]
    assert made[0].datagram[32:] == packets[0][20:], "the venue's frames are unchanged"
    assert translation.request(2, 3) == encode_mold_request(SESSION, 2, 2)
    assert translation.request(1, 10**6) == encode_mold_request(SESSION, 1, 65_534)


def test_packets_of_another_session_and_malformed_ones_are_counted_and_dropped() -> None:
    translation = PacketTranslation(itch(), FEED, STREAM, DAY, None)
    assert translation.source_packet(packet(1, 1)) is not None
    assert translation.source_packet(packet(1, 1, b"YESTERDAY ")) is None
    assert translation.source_packet(packet(1, 2)[:-1]) is None
    assert (translation.foreign, translation.malformed) == (1, 1)


def test_only_answers_of_the_requested_server_are_accepted(context: zmq.Context[Any], venue: Venue) -> None:
    asking = RequestSocket(context, LOOPBACK, venue.address)
    asking.send(encode_mold_request(SESSION, 3, 2))
    assert asking.socket.poll(GIVE_UP_S * 1_000)
    assert asking.receive() == packet(3, 4)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(packet(1, 1), venue.askers[0])
    assert asking.socket.poll(GIVE_UP_S * 1_000), "the datagram did not arrive"
    assert asking.receive() is None, "a datagram from another address was accepted"
    asking.close()


@pytest.mark.parametrize("server", ["", "10.0.0.1", "venue:80", "10.0.0.1:0", "239.1.1.1:80", "10.0.0.1:70000"])
def test_a_bad_request_server_is_refused_by_name(server: str) -> None:
    with pytest.raises(BadGroup, match=r"IPV4:PORT|unicast address"):
        parse_server(server)


def test_a_stream_without_a_request_server_requests_nothing(context: zmq.Context[Any]) -> None:
    source = receiver(context, VenueLines())
    source.request(RequestSource(STREAM, ((1, 3),)))
    assert len(source.lines) == 1
    source.lines[0].close()


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (VenueLines(lines=((8, GROUPS[1]),)), "--line 8=.*: feed equities has source streams 7"),
        (VenueLines(request_servers=((8, "10.1.2.3:5"),)), "--request-server 8=.*: feed equities has source streams 7"),
        (VenueLines(channels=((STREAM, "A"),)), "--channel 7=A: a channel must be a number"),
    ],
)
def test_lines_of_streams_that_the_feed_does_not_have_are_refused(
    context: zmq.Context[Any], lines: VenueLines, reason: str
) -> None:
    with pytest.raises(BadGroup, match=reason):
        receiver(context, lines)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--channel", "1=2"], "apply to a venue's own lines only; add --venue-lines"),
        (["--venue-lines", "--channel", "one"], "--channel is 'one'; it must be STREAM=VALUE"),
    ],
)
def test_options_of_lines_are_checked(
    tmp_path: Path, options: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    connection = [
        "--admin",
        "127.0.0.1:1",
        "--ca",
        str(secret),
        "--identity",
        "adapter-a",
        "--secret-file",
        str(secret),
    ]
    own = ["--feed", "f", "--name", "a", "--journal", "j", "--tls-cert", str(secret), "--tls-key", str(secret)]
    with pytest.raises(SystemExit):
        run_adapter([*own, *connection, *options])
    assert reason in " ".join(capsys.readouterr().err.split())


# Converts one message of ITCH 5.0 to the example's model.
TABLE = """<converterTable name="trades" sourceFormat="itch50">
  <convert message="trade" to="TradeTick">
    <let name="price9" function="scale" of="price" exponent="-9"/>
    <field name="symbol" function="text" of="stock"/>
    <field name="eventAt" function="since_midnight" of="timestamp" zone="America/New_York"/>
    <field name="price" function="copy" of="price9"/>
    <field name="size" function="copy" of="shares"/>
    <field name="side" function="copy" of="side"/>
    <field name="flags" function="constant" value="0"/>
    <field name="dayVolume" function="day_volume" of="shares" by="stock_locate"/>
    <field name="dayHigh" function="day_high" of="price9" by="stock_locate"/>
    <field name="dayLow" function="day_low" of="price9" by="stock_locate"/>
    <field name="vwap" function="vwap" of="price9" weight="shares" by="stock_locate"/>
  </convert>
</converterTable>"""
LINES = {"A": b"239.192.1.1:5001", "B": b"239.192.1.9:5009"}  # the feed's own group of stream 1, and a second line


def trades(first: int, last: int) -> bytes:
    """A packet of ITCH trades, one for each number."""
    bodies = [
        struct.pack(">cHHHIQcI8sIQ", b"P", 9, 0, 0, number, 0, b"B", number, b"ACME    ", 10_000 + number, number)
        for number in range(first, last + 1)
    ]
    return encode_mold_packet(SESSION, first, bodies)


@pytest.mark.processes
def test_adapters_on_an_exchange_lose_nothing_when_lines_lose_packets_and_the_active_is_killed(
    tmp_path: Path, context: zmq.Context[Any]
) -> None:
    table = tmp_path / "table.xml"
    table.write_text(TABLE)
    venue = Venue(trades)
    own_lines = ["--venue-lines", "--line", f"1={LINES['B'].decode()}", "--request-server", f"1={venue.address}"]
    documents = ["--source-format", str(document("itch50.xml")), "--table", str(table)]
    sender = ZeromqSender(context, LOOPBACK)
    with running_server(tmp_path) as server:
        adapters = {name: AdapterUnderTest(server, name, tmp_path, extra=[*own_lines, *documents]) for name in "ab"}
        try:
            adapters["a"].await_state("active")
            adapters["b"].await_state("synchronized")
            ca = (server.folder.path / "ca.pem").read_bytes()
            with (
                connect(admin=server.endpoint, ca=ca, identity="reader", secret=secret_of(server, "reader")) as client,
                client.subscribe(feed="equities", start="first") as subscription,
            ):
                seen: list[tuple[int, Any]] = []
                for first in range(1, TOTAL, PER_PACKET):
                    if first == 301:
                        adapters["a"].kill()
                    for place, group in enumerate(LINES.values()):
                        if not (first % 5 == place or first % 7 == 0):
                            sender.send(group, trades(first, first + PER_PACKET - 1))
                sender.send(LINES["A"], encode_mold_packet(SESSION, TOTAL + 1, []))
                while len(seen) < TOTAL:
                    items = subscription.poll(GIVE_UP_S)
                    assert items, f"only {len(seen)} of {TOTAL}"
                    for item in items:
                        if isinstance(item, Batch):
                            seen += [(each.origin.source_seq, each) for each in item.messages()]
                assert [seq for seq, _ in seen] == list(range(1, TOTAL + 1))
                last = seen[-1][1]
                assert (last.symbol, last.size, last.raw.price) == ("ACME", TOTAL, (10_000 + TOTAL) * 10**5)
                assert last.day_volume == TOTAL * (TOTAL + 1) // 2
        finally:
            for adapter in adapters.values():
                adapter.stop()
            venue.close()
    assert venue.asked, "messages lost on both lines were not requested"
