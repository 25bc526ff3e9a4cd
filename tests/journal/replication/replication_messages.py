"""One message of each kind, and its bytes. Never edit these vectors; only add to them."""

from __future__ import annotations

from tandemfeed.journal.format.layout import HAS_TABLE
from tandemfeed.journal.replication.wire.messages import (
    NO_ID,
    Acknowledge,
    Heartbeat,
    Hello,
    Message,
    Piece,
    Position,
    Probe,
    Probed,
    Reason,
    Refused,
    Segment,
    SegmentDigest,
    Segments,
    Welcome,
)

ID = bytes(range(16))
OTHER_ID = bytes(range(16, 32))
SESSION = 0x0102030405060708
DIGEST = SegmentDigest(0x0512_A000_0000_0001, 0x0512_A000_0000_0003, bytes(range(0xA0, 0xB0)))
PLAIN = Segment(20_778, 1, 1_795_000_000_000_000_000, 2, 3, b"abcdef")
WITH_TABLE = Segment(
    20_778, 3, 1_795_000_000_000_000_001, 2 | HAS_TABLE, 0, b"\x01\x00\x00\x00\x04\x00\x00\x00" + b"xyzz"
)

MESSAGES: dict[str, Message] = {
    "hello of a new follower": Hello(SESSION, NO_ID),
    "hello": Hello(SESSION, ID),
    "welcome": Welcome(SESSION, ID, "DAILY", -25_200, "Europe/London", 64 << 20, True, 0x0512_A000_0000_0000),
    "position of an empty journal": Position(SESSION, OTHER_ID, 0x0512_A000_0000_0000, ()),
    "position": Position(SESSION, OTHER_ID, 0x0512_A000_0000_0003, (DIGEST,)),
    "probe": Probe(SESSION, 0x0289_5000_0000_0001),
    "probed nothing": Probed(SESSION, 0x0289_5000_0000_0001, None),
    "probed": Probed(SESSION, 0x0289_5000_0000_0001, DIGEST),
    "segments": Segments(SESSION, 0x0512_A000_0000_0001, (PLAIN, WITH_TABLE)),
    "piece": Piece(SESSION, 0x0512_A000_0000_0001, Segment(20_778, 1, 7, 1, 9, b""), 9, 3, b"defg"),
    "acknowledge": Acknowledge(SESSION, 0x0512_A000_0000_0005, 18),
    "heartbeat": Heartbeat(SESSION, 0x0512_A000_0000_0005),
    "refused": Refused(SESSION, Reason.DIVERGED, 0x0512_A000_0000_0002, "differs – here"),
}

VECTORS = {
    "hello of a new follower": "01010807060504030201000000000000000000000000000000002db7d3f9",
    "hello": "01010807060504030201000102030405060708090a0b0c0d0e0f2c256a62",
    "welcome": (
        "01020807060504030201000102030405060708090a0b0c0d0e0f909dffffffffffff0000000400000000010000000000a012"
        "0505004441494c590d004575726f70652f4c6f6e646f6ed825321f"
    ),
    "position of an empty journal": ("01030807060504030201101112131415161718191a1b1c1d1e1f0000000000a0120500ee6e87d3"),
    "position": (
        "01030807060504030201101112131415161718191a1b1c1d1e1f0300000000a01205010100000000a012050300000000a012"
        "05a0a1a2a3a4a5a6a7a8a9aaabacadaeaf127dac1d"
    ),
    "probe": "010408070605040302010100000000508902f30a857c",
    "probed nothing": "01050807060504030201010000000050890200f14856bd",
    "probed": (
        "010508070605040302010100000000508902010100000000a012050300000000a01205a0a1a2a3a4a5a6a7a8a9aaabacadaeaf4f13a386"
    ),
    "segments": (
        "010608070605040302010100000000a01205020000002a5100000000000001000000000000000080d35bfd1ee91802000000"
        "03000000060000006162636465662a5100000000000003000000000000000180d35bfd1ee91802000080000000000c000000"
        "010000000400000078797a7a52b8872e"
    ),
    "piece": (
        "010708070605040302010100000000a0120503000000000000002a5100000000000001000000000000000700000000000000"
        "0100000009000000090000006465666745b6adcc"
    ),
    "acknowledge": "010808070605040302010500000000a012051200000000000000e23bd3e9",
    "heartbeat": "010908070605040302010500000000a01205e02966e8",
    "refused": "010a0807060504030201050200000000a0120510006469666665727320e2809320686572658e01648e",
}
