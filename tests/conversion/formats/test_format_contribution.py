"""Contributed messages of the common model pass through their converter table unchanged."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np

from tandemfeed.adapter.conversion import load_converter
from tandemfeed.adapter.conversion.formats import document
from tandemfeed.client_lib.messages.message import Message, load_messages
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.wire.output_packet import OUTPUT_FRAME
from tandemfeed.feedcore.wire.source_packet import encode_source_header
from tandemfeed.spark_feed.contributions.frames import FrameMaker

MODEL: Any = load_messages(document("tick.xml"))
MESSAGES: list[Message] = [
    MODEL.Trade(symbol="ACME", eventAt=1, sequence=2, price=Decimal("1.5"), size=10, kind="Regular", side="Buy"),
    MODEL.Quote(symbol="EURUSD", bidPrice=Decimal("1.0841"), askPrice=None),
    MODEL.OrderEvent(orderId=7, action="Add", side="Sell", price=Decimal(-3), level=4),
    MODEL.Instrument(symbol="A" * 72, exchange="XNYS", lotSize=100),
    MODEL.Status(topic="halt", event="H", state="Halted"),
    MODEL.Imbalance(symbol="ACME", pairedSize=5, side="Buy", auction="open"),
    MODEL.Bar(symbol="ACME", interval=60, open=1, high=3, low=1, close=2),
    MODEL.Statistic(symbol="ACME", topic="vwap", price=Decimal("12.000000001")),
]


def test_every_message_of_the_model_passes_unchanged() -> None:
    assert {type(each).__name__ for each in MESSAGES} == set(MODEL)
    source_format = document("contribution.xml")
    maker = FrameMaker(load_source_format(source_format), 1_000)
    converter = load_converter(source_format, document("contribution-to-tick.xml"), document("tick.xml"))
    for each in MESSAGES:
        header = encode_source_header(
            feed_id=1, source_stream_id=1, message_count=1, session=20261121, first_source_seq=1, sent_at_ns=0
        )
        datagram, out = header + maker.frame(bytes(each)), np.zeros(1_000, np.uint8)
        assert converter.check(datagram)
        converted = converter.convert(datagram, 0, 1, out, 0, out.size)
        length, _ = OUTPUT_FRAME.unpack_from(out.tobytes())
        assert converted.source_count == converted.message_count == 1
        assert out[OUTPUT_FRAME.size : length].tobytes() == bytes(each), each
    assert not any(converter.counts().values())
