"""Captures and files to Parquet and SBE, beside independent decoders that only hand out Python objects.

Both sides take turns in the same run. Rates are of wall time, because a conversion writes while it converts; rates by
processor time, on which other load has less influence, are given beside them. Each
material is a recording, repeated with continued sequence numbers, or generated where there is no recording; recordings
are searched in TANDEMFEED_TEST_DATA (docs/formats/README.md says where they come from).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tandemfeed.adapter.conversion import CompiledConverter
from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.convert_command.converting import OUT_SIZE, convert_all
from tandemfeed.adapter.convert_command.input.inputs import Findings, Input
from tandemfeed.adapter.convert_command.input.reading import READERS
from tandemfeed.adapter.convert_command.output.outputs import open_output
from tandemfeed.benchmarks.captures.cases import CASES, Case
from tandemfeed.feedcore.documents.message_model import MessageModel, load_message_model

SESSION = 20_191_230


def say(text: str) -> None:
    """Report progress."""
    print(text, file=sys.stderr, flush=True)


class Rate(NamedTuple):
    """How many messages are done in a second of processor time, and in a second."""

    by_cpu: float
    by_wall: float


def rate_of(count: int, task: Callable[[], object]) -> Rate:
    """The rate at which this task does so many messages."""
    cpu_began, wall_began = time.process_time(), time.perf_counter()
    task()
    return Rate(count / (time.process_time() - cpu_began), count / (time.perf_counter() - wall_began))


def convert(case: Case, converter: CompiledConverter, model: MessageModel, kind: str, folder: Path) -> int:
    """Convert a case's file; returns how many messages were read."""
    findings, given = Findings(), Input((case.path,), case.table.source_format)
    result = convert_all(converter, given, case.reader, open_output(folder, model, kind), findings, session=SESSION)
    if findings.missing or findings.refused or result.read != case.count:
        raise AssertionError(f"{case.name}: {result.read:,} of {case.count:,} messages; {findings}")
    return result.read


def kernel_alone(case: Case, converter: CompiledConverter) -> Rate:
    """The rate of the kernel: messages that are read already, and outputs that are not written."""
    given = Input((case.path,), case.table.source_format)
    chunks = list(READERS[case.reader](given, Findings()))
    packets = [
        (each.source_packet(feed_id=0, source_stream_id=0, session=SESSION), each.message_count) for each in chunks
    ]
    out = np.zeros(OUT_SIZE, np.uint8)

    def task() -> None:
        for packet, count in packets:
            done = 0
            while done < count:
                done += converter.convert(packet, done, count - done, out, 0, OUT_SIZE).source_count

    return rate_of(case.count, task)


def measure(case: Case, pairs: int, folder: Path) -> dict[str, object]:
    """The rates of one case, and their ratios."""
    converter, model = CompiledConverter(case.table), load_message_model(document("tick.xml"))
    convert(case, converter, model, "sbe", folder)  # compiles what is not compiled
    kinds, rates = ("parquet", "sbe"), dict[str, list[Rate]]()
    for _ in range(pairs):
        rates.setdefault("decoder", []).append(rate_of(case.decoded_count, case.decode))
        rates.setdefault("kernel", []).append(kernel_alone(case, converter))
        for kind in kinds:
            rate = rate_of(case.count, partial(convert, case, converter, model, kind, folder))
            rates.setdefault(kind, []).append(rate)
    found = {name: Rate(*map(statistics.median, zip(*each, strict=True))) for name, each in rates.items()}
    decoder, kernel, parquet, sbe = (found[name] for name in ("decoder", "kernel", *kinds))
    say(
        f"{case.name}: {case.material}; messages/s: {case.decoder} {decoder.by_wall:,.0f}; to Parquet "
        f"{parquet.by_wall:,.0f} ({parquet.by_wall / decoder.by_wall:.1f} times as many), to SBE {sbe.by_wall:,.0f} "
        f"({sbe.by_wall / kernel.by_wall:.2f} of the kernel's {kernel.by_wall:,.0f})"
    )
    return {
        "material": case.material,
        "decoder": case.decoder,
        "decoder_msgs_per_s": round(decoder.by_wall),
        "kernel_msgs_per_s": round(kernel.by_wall),
        "parquet_msgs_per_s": round(parquet.by_wall),
        "parquet_msgs_per_cpu_s": round(parquet.by_cpu),
        "sbe_msgs_per_s": round(sbe.by_wall),
        "sbe_msgs_per_cpu_s": round(sbe.by_cpu),
        "parquet_ratio_to_decoder": round(parquet.by_wall / decoder.by_wall, 2),
        "sbe_ratio_to_kernel": round(sbe.by_wall / kernel.by_wall, 2),
    }


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure every case whose recording is there."""
    figures: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="tandemfeed-captures-") as place:
        for name, make in CASES.items():
            folder = Path(place) / name
            folder.mkdir()
            case = make(folder)
            if isinstance(case, str):
                say(f"{name}: not measured: {case}")
            else:
                figures[name] = measure(case, arguments.pairs, folder)
    return figures
