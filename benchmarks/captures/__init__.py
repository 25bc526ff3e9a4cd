"""Captures and files to Parquet and SBE, beside independent decoders that only hand out Python objects.

Both sides take turns in the same run. Times are processor times, so that other load on the machine matters little. Each
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

import numpy as np

from tandemfeed.adapter.conversion import CompiledConverter
from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.convert_command.converting import OUT_SIZE, convert_all
from tandemfeed.adapter.convert_command.inputs import Findings, Input
from tandemfeed.adapter.convert_command.outputs import open_output
from tandemfeed.adapter.convert_command.reading import READERS
from tandemfeed.benchmarks.captures.cases import CASES, Case
from tandemfeed.feedcore.documents.message_model import MessageModel, load_message_model

SESSION = 20_191_230


def say(text: str) -> None:
    """Report progress."""
    print(text, file=sys.stderr, flush=True)


def per_second(count: int, task: Callable[[], object]) -> float:
    """How many are done in a second of processor time."""
    began = time.process_time()
    task()
    return count / (time.process_time() - began)


def convert(case: Case, converter: CompiledConverter, model: MessageModel, kind: str, folder: Path) -> int:
    """Convert a case's file; returns how many messages were read."""
    findings, given = Findings(), Input((case.path,), case.table.source_format)
    result = convert_all(converter, given, case.reader, open_output(folder, model, kind), findings, session=SESSION)
    if findings.missing or findings.refused or result.read != case.count:
        raise AssertionError(f"{case.name}: {result.read:,} of {case.count:,} messages; {findings}")
    return result.read


def kernel_alone(case: Case, converter: CompiledConverter) -> float:
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

    return per_second(case.count, task)


def measure(case: Case, pairs: int, folder: Path) -> dict[str, object]:
    """The rates of one case, and their ratios."""
    converter, model = CompiledConverter(case.table), load_message_model(document("tick.xml"))
    convert(case, converter, model, "sbe", folder)  # compiles what is not compiled
    kinds, rates = ("parquet", "sbe"), dict[str, list[float]]()
    for _ in range(pairs):
        rates.setdefault("decoder", []).append(per_second(case.decoded_count, case.decode))
        rates.setdefault("kernel", []).append(kernel_alone(case, converter))
        for kind in kinds:
            rate = per_second(case.count, partial(convert, case, converter, model, kind, folder))
            rates.setdefault(kind, []).append(rate)
    found = {name: statistics.median(each) for name, each in rates.items()}
    parquet, sbe = found["parquet"] / found["decoder"], found["sbe"] / found["kernel"]
    say(
        f"{case.name}: {case.material}; {case.decoder} {found['decoder']:,.0f} messages/s; to Parquet "
        f"{found['parquet']:,.0f} ({parquet:.1f} times as many), to SBE {found['sbe']:,.0f} "
        f"({sbe:.2f} of the kernel's {found['kernel']:,.0f})"
    )
    return {
        "material": case.material,
        "decoder": case.decoder,
        "decoder_msgs_per_s": round(found["decoder"]),
        "kernel_msgs_per_s": round(found["kernel"]),
        "parquet_msgs_per_s": round(found["parquet"]),
        "sbe_msgs_per_s": round(found["sbe"]),
        "parquet_ratio_to_decoder": round(parquet, 2),
        "sbe_ratio_to_kernel": round(sbe, 2),
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
