"""Adapters receive the lines of a venue that numbers packets, over real sockets, and one of them is killed."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
import zmq

from tandemfeed.client_lib import Batch, connect
from tandemfeed.transport.multicast.zeromq import ZeromqSender
from tests.adapter.processes.adapter_processes import AdapterUnderTest
from tests.adapter.test_venue_source import GIVE_UP_S, LINES, LOOPBACK
from tests.admin_server.cluster_files import running_server, secret_of

FORMAT = """<sourceFormat name="venue">
<packet name="Venue" headerSize="4"><sequence type="uint32" counts="packets" messagesMax="8"/></packet>
<message name="one" type="1"><field name="number" type="uint32"/></message></sourceFormat>"""
# Converts the only message of the venue to the example's model.
TABLE = """<converterTable name="ones" sourceFormat="venue">
  <convert message="one" to="TradeTick">
    <let name="whole" function="constant" value="0" exponent="-9"/>
    <field name="symbol" function="constant" text="ACME"/>
    <field name="eventAt" function="copy" of="packet.sent_at_ns"/>
    <field name="price" function="copy" of="whole"/>
    <field name="size" function="copy" of="number"/>
    <field name="side" function="constant" text="B"/>
    <field name="flags" function="constant" value="0"/>
    <field name="dayVolume" function="day_volume" of="number" by="number"/>
    <field name="dayHigh" function="copy" of="whole"/>
    <field name="dayLow" function="copy" of="whole"/>
    <field name="vwap" function="copy" of="whole"/>
  </convert>
</converterTable>"""
PACKETS, SIZES = 60, (1, 3, 2)


def packet(number: int) -> bytes:
    """A packet of one to three messages; each has the number of its packet, and its place in it."""
    messages = (struct.pack("<HHI", 8, 1, 10 * number + place) for place in range(SIZES[number % 3]))
    return struct.pack("<I", number) + b"".join(messages)


@pytest.mark.processes
def test_messages_of_numbered_packets_arrive_once_through_losses_and_the_death_of_the_active(tmp_path: Path) -> None:
    (tmp_path / "format.xml").write_text(FORMAT)
    (tmp_path / "table.xml").write_text(TABLE)
    documents = ["--source-format", str(tmp_path / "format.xml"), "--table", str(tmp_path / "table.xml")]
    lines = ["--venue-lines", "--line", f"1={LINES['B'].decode()}"]
    context: zmq.Context[Any] = zmq.Context()
    sender = ZeromqSender(context, LOOPBACK)
    wanted = [
        (8 * (number - 1) + 1 + place, 10 * number + place)
        for number in range(1, PACKETS + 1)
        for place in range(SIZES[number % 3])
    ]
    with running_server(tmp_path) as server:
        adapters = {name: AdapterUnderTest(server, name, tmp_path, extra=[*lines, *documents]) for name in "ab"}
        try:
            adapters["a"].await_state("active")
            adapters["b"].await_state("synchronized")
            ca = (server.folder.path / "ca.pem").read_bytes()
            with (
                connect(admin=server.endpoint, ca=ca, identity="reader", secret=secret_of(server, "reader")) as client,
                client.subscribe(feed="equities", start="first") as subscription,
            ):
                seen: list[tuple[int, int]] = []
                for number in range(1, PACKETS + 1):
                    if number == PACKETS // 2:
                        adapters["a"].kill()
                    for place, group in enumerate(LINES.values()):
                        if number % 3 != place:  # each line loses every third packet
                            sender.send(group, packet(number))
                while len(seen) < len(wanted):
                    items = subscription.poll(GIVE_UP_S)
                    assert items, f"only {len(seen)} of {len(wanted)}"
                    for item in items:
                        if isinstance(item, Batch):
                            seen += [(each.origin.source_seq, each.size) for each in item.messages()]
                assert seen == wanted
        finally:
            for adapter in adapters.values():
                adapter.stop()
            sender.close()
            context.destroy(linger=0)
