"""Messages to contribute, and the source format that they fit."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from tandemfeed.client_lib.messages.message import load_messages
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.wire.source_packet import SOURCE_HEADER_SIZE, unpack_source_header
from tandemfeed.spark_feed.contributions.book import Producer
from tandemfeed.spark_feed.contributions.records import StreamPlace

FORMATS = Path(__file__).resolve().parents[3] / "adapter" / "conversion" / "formats"
SOURCE_FORMAT = load_source_format(FORMATS / "contribution.xml")
MESSAGES: Any = load_messages(FORMATS / "tick.xml")
PLACE = StreamPlace("resale", 3, 20261121, 1, 1_472)
ALICE, BOB = Producer("alice", "model"), Producer("bob", "desk")
A, B = b"a" * 16, b"b" * 16  # instances


def trade(number: int) -> bytes:
    """A trade that has this number as its sequence."""
    return bytes(
        MESSAGES.Trade(symbol="ACME", eventAt=number, sequence=number, price=Decimal("1.5"), size=10, kind="Regular")
    )


def sequence_of(message: bytes) -> int:
    """The number of a `trade`."""
    number: int = MESSAGES.Trade.from_bytes(message).sequence
    return number


def messages_in(datagram: bytes) -> Iterator[tuple[int, int]]:
    """(source_seq, sequence of the trade) of each message of a source packet."""
    header, at = unpack_source_header(datagram), SOURCE_HEADER_SIZE
    for place in range(header.message_count):
        size = int.from_bytes(datagram[at : at + 2], "little")
        yield header.first_source_seq + place, sequence_of(datagram[at + 2 : at + size])
        at += size
    assert at == len(datagram)
