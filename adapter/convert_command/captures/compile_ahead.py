"""Compiles the walks over captures in advance, so that reading a capture does not wait for the compiler."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO

import numpy as np

from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.convert_command.captures.capture_walk import CaptureWalk, Datagrams
from tandemfeed.adapter.convert_command.captures.keys import KeyTable
from tandemfeed.adapter.convert_command.captures.line_groups import Contents
from tandemfeed.adapter.convert_command.captures.protocols import moldudp64
from tandemfeed.adapter.convert_command.captures.rows import COLUMNS
from tandemfeed.adapter.convert_command.captures.stream_merge import StreamMerge
from tandemfeed.adapter.kernel_cache import CACHE_FOLDER
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.journal.compiled.compile_report import compilation_reported

MODULE = "tandemfeed.adapter.convert_command.captures"


def compile_captures() -> None:
    """Compile every walk, by walking over nothing; what was compiled before is loaded."""
    flows = KeyTable()
    flows.add(b"")
    for is_pcapng in (False, True):
        CaptureWalk(BytesIO(), flows).compile(is_pcapng=is_pcapng)
    source_format = load_source_format(document("itch50.xml"))
    protocol = moldudp64(source_format)
    merge = StreamMerge(
        protocol,
        source_format,
        keeps_times=False,
        keeps_streams=False,
        group_name=lambda group: "",
        refuse=lambda row, reason: None,
    )
    nothing = Datagrams(np.zeros(0, np.uint8), np.zeros((0, COLUMNS), np.int64))
    assert list(merge.take(nothing, np.zeros(1, np.int64))) == []
    Contents(protocol, flows).add(nothing)


def compile_captures_reported(report: Callable[[str], None]) -> None:
    """The same, for a command that is about to read a capture; it says so if anything is compiled."""
    with compilation_reported("the functions that read captures", CACHE_FOLDER, module=MODULE, report=report):
        compile_captures()
