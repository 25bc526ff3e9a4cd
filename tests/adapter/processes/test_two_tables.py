"""One source stream, converted by two tables into two channels, in a cluster of real processes whose actives die."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tandemfeed.adapter.conversion.loading.table_loading import load_table
from tandemfeed.client_lib import Batch, Subscription
from tandemfeed.feedcore.documents.message_model import load_message_model
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.merge.effects import Gap, SourceGap, Takeover
from tandemfeed.feedcore.wire.output_packet import OUTPUT_FRAME, OUTPUT_FRAME_SIZE, message_frames
from tandemfeed.feedcore.wire.source_packet import unpack_source_header
from tandemfeed.offline.reconciliation.reconciling import reconcile
from tests.adapter.processes.adapter_processes import SourceByHand
from tests.adapter.processes.clusters import POLL_S, Feed, running_cluster
from tests.conversion.oracle.interpreted import InterpretedConverter

pytestmark = pytest.mark.processes
DOCUMENTS = Path(__file__).resolve().parents[3] / "deploy" / "examples" / "two-tables"
TRADES, DAYS = 1, 2  # channels; the second one also reads source stream 1 of the first
TABLES = {TRADES: DOCUMENTS / "trades.xml", DAYS: DOCUMENTS / "days.xml"}
DATAGRAM_SIZE_MAX = 1_472


class Copy:
    """What a subscription has delivered of one channel."""

    def __init__(self) -> None:
        self.sources: list[tuple[int, int]] = []  # (source_stream_id, source_seq)
        self.bodies: list[bytes] = []
        self.events: list[object] = []


class Reader:
    """Collects what a subscription to both channels delivers."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self.copies = {TRADES: Copy(), DAYS: Copy()}

    def take_until(self, counts: dict[int, int]) -> None:
        """Take items until so many source messages of each channel were delivered."""
        while any(len(self.copies[channel].sources) < count for channel, count in counts.items()):
            items = self._subscription.poll(POLL_S)
            assert items, {channel: (len(each.sources), each.events[-5:]) for channel, each in self.copies.items()}
            for item in items:
                self._note(item)

    def _note(self, item: object) -> None:
        if not isinstance(item, Batch):
            self.copies[getattr(item, "channel_id", TRADES)].events.append(item)
            return
        copy, packet = self.copies[item.channel_id], item.packet
        for run in item.sources():
            copy.sources += [(run.source_stream_id, seq) for seq in range(run.first_source_seq, run.end_source_seq)]
        frames = message_frames(packet)
        copy.bodies += [packet.payload[at + OUTPUT_FRAME_SIZE : at + length] for at, length in frames]


def oracle(table: Path, source: SourceByHand, order: list[tuple[int, int]]) -> list[bytes]:
    """The messages that an interpreter of a table makes of source messages, in the order in which they were taken."""
    model = load_message_model(DOCUMENTS / "message-model.xml")
    source_format = load_source_format(DOCUMENTS / "source-format.xml")
    converter = InterpretedConverter(load_table(table, source_format, model, DATAGRAM_SIZE_MAX))
    places = {}
    for stream, datagrams in source.sent.items():
        for datagram in datagrams:
            header = unpack_source_header(datagram)
            for place in range(header.message_count):
                places[stream, header.first_source_seq + place] = datagram, place
    out, bodies = np.zeros(DATAGRAM_SIZE_MAX, np.uint8), []
    for identity in order:
        datagram, place = places[identity]
        end, at = converter.convert(datagram, place, 1, out, 0, len(out)).end, 0
        while at < end:
            length, _ = OUTPUT_FRAME.unpack_from(out, at)
            bodies.append(out[at + OUTPUT_FRAME_SIZE : at + length].tobytes())
            at += length
    return bodies


def play(source: SourceByHand, packet_count: int) -> None:
    """Send packets of both streams. Of stream 1, every fifth one is lost on its way to all adapters.

    Each stream has symbols of its own, so that a message's content depends only on the messages of its stream: what an
    active adapter sent alone before it died may be decided again in another order.
    """
    for number in range(packet_count):
        source.send_frames(1, source.trades(1, 7), is_lost=number % 5 == 2)
        source.send_frames(2, source.trades(2, 3, b"CD"))
    source.beat()


def sent(source: SourceByHand) -> dict[int, int]:
    """How many source messages each channel must deliver."""
    first, second = (source.next_seq[stream] - 1 for stream in (1, 2))
    return {TRADES: first, DAYS: first + second}


def test_both_channels_lose_repeat_and_reorder_nothing_while_actives_die(tmp_path: Path) -> None:
    feed = Feed(
        "ab",
        channels={TRADES: (1,), DAYS: (2,)},
        also_reads={DAYS: (1,)},
        tables=TABLES,
        message_model=DOCUMENTS / "message-model.xml",
    )
    with running_cluster(tmp_path, feed) as cluster:
        cluster.start_adapters("ab")
        with cluster.subscription() as subscription:
            reader, source = Reader(subscription), cluster.source
            active = cluster.await_active("equities", synchronized_count=1).active.adapter_id
            for _ in range(2):
                play(source, 40)
                reader.take_until(sent(source))
                play(source, 20)
                victim = "ab"[active - 1]
                cluster.kill(victim)
                play(source, 40)
                reader.take_until(sent(source))
                active = cluster.await_active("equities", other_than=active).active.adapter_id
                cluster.start_adapters(victim)
                cluster.await_active("equities", synchronized_count=1)
        assert {adapter.stop() for adapter in cluster.adapters.values()} == {0}
        for channel, copy in reader.copies.items():
            for stream in (1, 2) if channel == DAYS else (1,):
                taken = [seq for each, seq in copy.sources if each == stream]
                assert taken == list(range(1, source.next_seq[stream])), (channel, stream)
            assert copy.bodies == oracle(TABLES[channel], source, copy.sources)
            assert not any(isinstance(event, Gap | SourceGap) for event in copy.events), copy.events
            assert sum(isinstance(event, Takeover) for event in copy.events) >= 2
        assert len(reader.copies[DAYS].bodies) < len(reader.copies[DAYS].sources), "each table gives its own messages"
        found = reconcile(None, [tmp_path / "journal-a", tmp_path / "journal-b"])
        assert found.problems == []
        readers = [(TRADES, 1), (DAYS, 1), (DAYS, 2)]
        assert [(each.channel_id, each.source_stream_id) for each in found.streams] == readers
