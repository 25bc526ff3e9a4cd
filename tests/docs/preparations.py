"""What the examples of some pages find in their folder: journals, and recordings in venues' formats."""

from __future__ import annotations

import gzip
import shutil
import struct
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import databento_dbn as dbn
import zstandard

from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.conversion.formats.packets.iex_tp import IEX_TP_HEADER, PROTOCOL_TOPS
from tandemfeed.deploy.cluster.topology import Shape
from tandemfeed.deploy.drills.source import PACKET_MESSAGES_MAX, Recording, prepare_journal
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.journal import Journal, Tailer
from tandemfeed.journal.format.layout import BLOCK_SIZE_MIN
from tandemfeed.journal.typed_records.history import Hop, MessageHistory
from tandemfeed.journal.typed_records.typed import method_writer

BEGIN_NS = int(datetime(2026, 11, 21, 9, 10, tzinfo=UTC).timestamp()) * 1_000_000_000
RECORD_COUNT = 40
ORDER_STEP_NS, TRADE_STEP_NS = 4_500_000_000, 4_000_000_000
LOST_TRADE = 18  # its source never sent it
DAMAGED_FILE, DAMAGED_OFFSET = "001c88e67-000000.tfj", 4_700  # in a record of the copy


def make_source_journal(folder: Path) -> None:
    """What `tandemfeed source-job` makes of the recording in this folder, without Spark."""
    (feed,) = Shape().feed_layouts()
    recording = Recording(folder / "recording", 0, "letter")
    prepare_journal(recording, feed, folder / "cluster.toml", folder / "source-journal", PACKET_MESSAGES_MAX)


# ---- journals ----


class Orders(Protocol):
    """The records of the journal `orders`."""

    def place(self, symbol: str, quantity: int, price: float) -> None:
        """A new order."""


class _Clock:
    """Advances by one step per record."""

    def __init__(self, step_ns: int) -> None:
        self.now_ns, self._step_ns = BEGIN_NS, step_ns

    def __call__(self) -> int:
        return self.now_ns

    def advance(self) -> None:
        self.now_ns += self._step_ns


def make_journals(folder: Path) -> None:
    """The journals that docs/journal-command.md shows: `orders`, `trades`, and a damaged copy of `orders`."""
    _make_orders(folder / "orders")
    shutil.copytree(folder / "orders", folder / "copy")
    with (folder / "copy" / DAMAGED_FILE).open("r+b") as file:
        file.seek(DAMAGED_OFFSET)
        file.write(b"\xa5\xa5")
    with Tailer(folder / "orders", name="audit") as tailer:
        tailer.to_index(0x1C88E68000000003)
        tailer.commit()
    clock = _Clock(TRADE_STEP_NS)
    with _journal(folder / "trades", clock) as journal:
        for number in range(1, RECORD_COUNT + 1):
            if number != LOST_TRADE:
                journal.append(b"XNAS seq=%d ABC %d @ 10.5" % (number, 99 + number))
                clock.advance()


def _make_orders(folder: Path) -> None:
    clock = _Clock(ORDER_STEP_NS)
    appended = 0

    def history() -> MessageHistory:
        """Of an order that two processes passed on, each after some microseconds."""
        received_ns, wait_ns = clock() - 92_000, 97 * appended
        first = Hop(1, 0, received_ns, received_ns + 10_000 + wait_ns)
        second = Hop(2, appended, first.sent_at_ns + 45_000 + wait_ns // 2, clock())
        return MessageHistory().with_hop(first).with_hop(second)

    with _journal(folder, clock) as journal:
        orders = method_writer(Orders, journal, history_source=history)
        for appended in range(RECORD_COUNT):
            orders.place("XYZ" if appended % 2 else "ABC", quantity=100 + appended, price=10.5 + appended / 4)
            clock.advance()


def _journal(folder: Path, clock: Callable[[], int]) -> Journal:
    return Journal.open(folder, roll_cycle="MINUTELY", block_size=BLOCK_SIZE_MIN, clock_ns=clock)


# ---- recordings ----

SCHEMA = """<messageSchema package="page" id="1" version="0" byteOrder="littleEndian"><types>
<composite name="messageHeader"><type name="blockLength" primitiveType="uint16"/>
<type name="templateId" primitiveType="uint16"/><type name="schemaId" primitiveType="uint16"/>
<type name="version" primitiveType="uint16"/></composite>
<type name="Text8" primitiveType="char" length="8"/>
<composite name="Decimal"><type name="mantissa" primitiveType="int64"/>
<type name="exponent" primitiveType="int8" presence="constant">-9</type></composite></types>
<message name="Trade" id="1"><field name="Symbol" id="1" type="Text8"/><field name="Price" id="2" type="Decimal"/>
</message></messageSchema>"""
LOBSTER_ROWS = "34200.1,1,7,18,5853300,1\n34200.2,4,7,8,5853300,1\n"
TICK_ROWS = "time,bid,ask\n1795252367718,151.25,151.26\n"


def make_recordings(folder: Path) -> None:
    """A small recording under each name that the pages about formats use."""
    (folder / "12302019.NASDAQ_ITCH50").write_bytes(_itch_message())
    (folder / "AAPL_2012-06-21_34200000_57600000_message_10.csv").write_text(LOBSTER_ROWS)
    (folder / "usdjpy.csv").write_text(TICK_ROWS)
    (folder / "esh4.mbo.dbn.zst").write_bytes(zstandard.compress(_dbn_file()))
    (folder / "templates.xml").write_text(SCHEMA)
    (folder / "message.bin").write_bytes(struct.pack("<4H8sq", 16, 1, 1, 0, b"ACME", 151_250_000_000))
    _write_iex_capture(folder / "TOPS16.pcapng.gz")


def _itch_message() -> bytes:
    order = load_source_format(document("itch50.xml")).messages["addOrder"]
    return order.size.to_bytes(2, "big") + b"A" + bytes(10) + b"B".rjust(9, b"\1") + b"ACME    ".rjust(16, b"\1")


def _dbn_file() -> bytes:
    metadata = dbn.Metadata("XNAS.ITCH", 0, dbn.SType.RAW_SYMBOL, dbn.SType.INSTRUMENT_ID, dbn.Schema.MBO, ["ACME"])
    order = dbn.MBOMsg(1, 1, 0, 7, 1_000_000_000, 5, dbn.Action.ADD, dbn.Side.BID, 0)
    return bytes(metadata.encode()) + bytes(order)


def _write_iex_capture(path: Path) -> None:
    from scapy.all import IP, UDP, Ether, Raw, wrpcapng  # slow to import, and few pages need it

    frame = b"\1\0S"
    segment = IEX_TP_HEADER.pack(1, PROTOCOL_TOPS, 1, 5, len(frame), 1, 0, 9, 7) + frame
    packet = Ether() / IP(src="10.0.0.1", dst="233.54.12.111") / UDP(sport=1000, dport=26_400) / Raw(segment)
    whole = path.with_suffix("")
    wrpcapng(str(whole), [packet])
    path.write_bytes(gzip.compress(whole.read_bytes()))


PREPARATIONS: dict[str, Callable[[Path], None]] = {
    "needs source journal": make_source_journal,
    "needs journals": make_journals,
    "needs recordings": make_recordings,
}
