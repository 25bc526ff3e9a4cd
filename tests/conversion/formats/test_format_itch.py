"""NASDAQ TotalView-ITCH 5.0: our document reads real recordings as independent decoders read them."""

from __future__ import annotations

import gzip
import struct
from io import BytesIO
from typing import Any

import pytest
from itch.parser import MessageParser

from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.conversion.formats.chunks import FormatError
from tandemfeed.adapter.conversion.formats.files.binary_file import read_binary_file
from tandemfeed.adapter.conversion.formats.frames.frame_reader import FrameReader
from tandemfeed.feedcore.documents.source_format import load_source_format
from tests.real_data import shared_file

FORMAT = load_source_format(document("itch50.xml"))
READER = FrameReader(FORMAT)
COMMON = {"stock_locate": "stock_locate", "tracking_number": "tracking_number", "timestamp": "timestamp"}
STOCK = {"stock": "stock"}
# message type -> our field: theirs
NAMES: dict[bytes, dict[str, str]] = {
    b"S": {"event_code": "event_code"},
    b"R": STOCK
    | {
        "market_category": "market_category",
        "financial_status": "financial_status_indicator",
        "round_lot_size": "round_lot_size",
        "round_lots_only": "round_lots_only",
        "issue_classification": "issue_classification",
        "issue_sub_type": "issue_sub_type",
        "authenticity": "authenticity",
        "short_sale_threshold": "short_sale_threshold_indicator",
        "ipo_flag": "ipo_flag",
        "luld_tier": "luld_ref",
        "etp_flag": "etp_flag",
        "etp_leverage_factor": "etp_leverage_factor",
        "inverse_indicator": "inverse_indicator",
    },
    b"H": STOCK | {"trading_state": "trading_state", "reserved": "reserved", "reason": "reason"},
    b"Y": STOCK | {"reg_sho_action": "reg_sho_action"},
    b"L": STOCK
    | {
        "mpid": "mpid",
        "primary_market_maker": "primary_market_maker",
        "market_maker_mode": "market_maker_mode",
        "participant_state": "market_participant_state",
    },
    b"V": {"level_1": "level1_price", "level_2": "level2_price", "level_3": "level3_price"},
    b"W": {"breached_level": "breached_level"},
    b"K": STOCK
    | {"release_time": "ipo_release_time", "release_qualifier": "ipo_release_qualifier", "ipo_price": "ipo_price"},
    b"J": STOCK
    | {
        "reference_price": "auction_collar_reference_price",
        "upper_price": "upper_auction_collar_price",
        "lower_price": "lower_auction_collar_price",
        "extension": "auction_collar_extention",
    },
    b"h": STOCK | {"market_code": "market_code", "halt_action": "operational_halt_action"},
    b"A": STOCK
    | {"order_ref": "order_reference_number", "side": "buy_sell_indicator", "shares": "shares", "price": "price"},
    b"F": STOCK
    | {
        "order_ref": "order_reference_number",
        "side": "buy_sell_indicator",
        "shares": "shares",
        "price": "price",
        "attribution": "attribution",
    },
    b"E": {"order_ref": "order_reference_number", "shares": "executed_shares", "match_number": "match_number"},
    b"C": {
        "order_ref": "order_reference_number",
        "shares": "executed_shares",
        "match_number": "match_number",
        "printable": "printable",
        "price": "execution_price",
    },
    b"X": {"order_ref": "order_reference_number", "shares": "cancelled_shares"},
    b"D": {"order_ref": "order_reference_number"},
    b"U": {
        "order_ref": "order_reference_number",
        "new_order_ref": "new_order_reference_number",
        "shares": "shares",
        "price": "price",
    },
    b"P": STOCK
    | {
        "order_ref": "order_reference_number",
        "side": "buy_sell_indicator",
        "shares": "shares",
        "price": "price",
        "match_number": "match_number",
    },
    b"Q": STOCK
    | {"shares": "shares", "price": "cross_price", "match_number": "match_number", "cross_type": "cross_type"},
    b"B": {"match_number": "match_number"},
    b"I": STOCK
    | {
        "paired_shares": "paired_shares",
        "imbalance_shares": "imbalance_shares",
        "imbalance_direction": "imbalance_direction",
        "far_price": "far_price",
        "near_price": "near_price",
        "reference_price": "current_reference_price",
        "cross_type": "cross_type",
        "variation_indicator": "variation_indicator",
    },
    b"N": STOCK | {"interest_flag": "interest_flag"},
    b"O": STOCK
    | {
        "open_eligibility": "open_eligibility_status",
        "minimum_price": "minimum_allowable_price",
        "maximum_price": "maximum_allowable_price",
        "near_execution_price": "near_execution_price",
        "near_execution_time": "near_execution_time",
        "lower_collar": "lower_price_range_collar",
        "upper_collar": "upper_price_range_collar",
    },
}


def theirs(frame: bytes) -> dict[str, Any]:
    """One framed message, read by the other decoder, with our names."""
    message = MessageParser().get_message_type(frame[2:])
    values = {}
    for ours, other in (COMMON | NAMES[frame[2:3]]).items():
        value = getattr(message, other)
        values[ours] = value.rstrip(b" ") if isinstance(value, bytes) else value
    return values


def check_all(frames: bytes) -> int:
    """Compare our reading of these frames with the other decoder's; returns the number of frames."""
    ours = list(READER.read(frames))
    places = list(READER.walk(frames))
    assert len(ours) == len(places)
    for (name, values), (offset, size, kind) in zip(ours, places, strict=True):
        assert FORMAT.messages[name].type_id == kind
        assert values == theirs(frames[offset : offset + size]), name
    return len(ours)


def test_the_document_has_every_message_type_and_every_length() -> None:
    sizes = {chr(message.type_id): message.size for message in FORMAT.messages.values()}
    assert sizes == {
        "S": 12,
        "R": 39,
        "H": 25,
        "Y": 20,
        "L": 26,
        "V": 35,
        "W": 12,
        "K": 28,
        "J": 35,
        "h": 21,
        "A": 36,
        "F": 40,
        "E": 31,
        "C": 36,
        "X": 23,
        "D": 19,
        "U": 35,
        "P": 44,
        "Q": 40,
        "B": 19,
        "I": 50,
        "N": 20,
        "O": 48,
    }


@pytest.mark.parametrize("kind", sorted(NAMES), ids=lambda kind: kind.decode())
def test_every_message_type_reads_as_another_decoder_reads_it(kind: bytes) -> None:
    message = next(each for each in FORMAT.messages.values() if each.type_id == kind[0])
    body = kind + bytes((7 * place + kind[0]) % 26 + 65 for place in range(1, message.size))
    assert check_all(struct.pack(">H", message.size) + body) == 1


def test_the_opening_of_a_real_day_reads_as_another_decoder_reads_it() -> None:
    data = shared_file("itch50/12302019_SNIPPET.NASDAQ_ITCH50").read_bytes()
    chunks = list(read_binary_file(BytesIO(data), FORMAT, messages_max=300))
    assert [(chunk.sequence, chunk.message_count) for chunk in chunks] == [(1, 300), (301, 300), (601, 300), (901, 100)]
    assert b"".join(chunk.frames for chunk in chunks) == data
    assert sum(check_all(chunk.frames) for chunk in chunks) == 1_000


def test_a_file_with_zero_lengths_reads_as_another_decoder_reads_it() -> None:
    data = gzip.decompress(shared_file("itch50/ex20101224.TEST_ITCH_50.gz").read_bytes())
    (chunk,) = read_binary_file(BytesIO(data), FORMAT)
    assert chunk.message_count == 12_012
    assert len(chunk.frames) == len(data)
    assert check_all(chunk.frames) == 12_012


def framed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">H", len(body)) + body for body in bodies)


def test_a_zero_length_ends_a_file_and_any_other_truncation_is_refused() -> None:
    event = b"S" + bytes(11)
    (chunk,) = read_binary_file(BytesIO(framed(event, event) + b"\0\0"), FORMAT)
    assert (chunk.message_count, chunk.frames) == (2, framed(event, event))
    assert list(read_binary_file(BytesIO(b""), FORMAT)) == []
    for damaged in (framed(event)[:-1], framed(event) + b"\0", framed(event) + b"\0\0" + framed(event)):
        with pytest.raises(FormatError, match=r"offset 1?[04]"):
            list(read_binary_file(BytesIO(damaged), FORMAT))
    for damaged in (b"\0\0" + event[:-1], b"\0\0?" + event, b"\0\0" + event + framed(event)):
        with pytest.raises(FormatError, match=r"offset (0|14)"):
            list(read_binary_file(BytesIO(damaged), FORMAT))


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (framed(b"S" + bytes(11))[:-1], "a frame has 14 bytes, but only 13 are left"),
        (b"\0\5S", "only 3 are left"),
        (b"\0", "not a whole frame"),
        (framed(b"S" + bytes(12)), "no message has type 83 and 15 bytes"),
    ],
)
def test_inconsistent_frames_are_refused_with_the_offset(damaged: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=f"offset 0: .*{reason}"):
        list(READER.read(damaged))
