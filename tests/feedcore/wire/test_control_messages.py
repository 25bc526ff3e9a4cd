"""Messages that tandemfeed adds to an output stream."""

from __future__ import annotations

from tandemfeed.feedcore.wire.control_messages import encode_source_gap
from tandemfeed.feedcore.wire.position import Run

GOLDEN_SOURCE_GAP = bytes.fromhex(
    "1e00" "0000"  # the frame
    "1200" "0100" "467f" "0000"  # SBE header: size of the body, template, schema, version
    "0300" "f501000000000000" "1c02000000000000"  # source stream 3 lacks 501 to 540
)  # fmt: skip


def test_the_golden_source_gap_names_the_stream_and_the_first_and_last_number() -> None:
    assert encode_source_gap(Run(3, 301, 101, 3, 501, 40, 1, True)) == GOLDEN_SOURCE_GAP
