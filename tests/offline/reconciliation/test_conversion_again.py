"""The source journal converted again: equal to what adapters journaled, or the field that differs is named."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

from tandemfeed.adapter.conversion import CompiledConverter
from tandemfeed.adapter.conversion.loading.table_loading import load_table
from tandemfeed.adapter.records.output_journal import OutputJournal
from tandemfeed.feedcore.documents.message_model import PREFIX_SIZE, load_message_model
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.wire.output_packet import FROM_ACTIVE_BIT, OutputPacket, encode_runs
from tandemfeed.feedcore.wire.position import Run
from tandemfeed.offline.reconciliation import cli
from tests.spark_feed.source_material import FEED, SOURCE_FORMAT, journal_without_spark, make_recording, packets_of
from tests.spark_feed.spark.output_material import BLOCK

EXAMPLES = SOURCE_FORMAT.parent
DOCUMENTS = [
    "--source-format", str(SOURCE_FORMAT), "--table", str(EXAMPLES / "converter-table.xml"),
    "--message-model", str(EXAMPLES / "message-model.xml"),
]  # fmt: skip
COUNT = 600


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("source")
    make_recording(folder / "recording", COUNT, 200)
    journal_without_spark(folder / "recording", folder / "journal")
    return folder / "journal"


@pytest.fixture(scope="module")
def transmitted(source: Path) -> list[OutputPacket]:
    """What an adapter makes of it: two packets of each source packet, so that runs are not source packets."""
    model = load_message_model(EXAMPLES / "message-model.xml")
    table = load_table(EXAMPLES / "converter-table.xml", load_source_format(SOURCE_FORMAT), model, 1_472)
    converter, out = CompiledConverter(table), np.zeros(65_536, np.uint8)
    packets: list[OutputPacket] = []
    input_seq = message_seq = 1
    for each in packets_of(source):
        half = (each.message_count + 1) // 2
        for skip, count in ((0, half), (half, each.message_count - half)):
            if count:
                result = converter.convert(each.datagram, skip, count, out, 0, len(out))
                first_source, made = each.first_source_seq + skip, result.message_count
                run = Run(1, input_seq, message_seq, each.source_stream_id, first_source, count, made, False)
                payload = encode_runs((run,)) + out[: result.end].tobytes()
                packets.append(
                    OutputPacket(
                        FROM_ACTIVE_BIT, 1, 1, 1, FEED.session, 1, input_seq, message_seq, made, (run,), 0, 0, payload
                    )
                )
                input_seq, message_seq = input_seq + count, message_seq + made
    return packets


def journaled(folder: Path, packets: Iterable[OutputPacket], adapter_id: int = 1) -> Path:
    journal = OutputJournal(folder, block_size=BLOCK)
    for packet in packets:
        journal.append(packet._replace(adapter_id=adapter_id))
    journal.close()
    return folder


def reconciled(source: Path, *journals: Path, options: Sequence[str] = ()) -> int:
    outputs = [option for journal in journals for option in ("--output", str(journal))]
    return cli.main(["--source-journal", str(source), *outputs, *DOCUMENTS, *options])


def test_equal_journals_are_what_the_conversion_gives(
    source: Path, transmitted: list[OutputPacket], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = journaled(tmp_path / "a", transmitted)
    two = journaled(tmp_path / "b", transmitted[10:], adapter_id=2)  # it came later, and knows nothing from before
    assert reconciled(source, one, two) == 0
    text = capsys.readouterr().out
    assert f"{one}: {COUNT:,} source messages converted again, {COUNT:,} with equal messages" in text
    late = sum(packet.runs[0].source_count for packet in transmitted[10:])
    assert f"{two}: {late:,} source messages converted again, {late:,} with equal messages" in text


def test_a_difference_is_named_by_journal_source_message_and_field_even_if_all_journals_have_it(
    source: Path, transmitted: list[OutputPacket], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packet = transmitted[7]
    (run,) = packet.runs
    payload = bytearray(packet.payload)
    payload[packet.messages_offset + PREFIX_SIZE] ^= 1  # the first field of its first message
    wrong = [*transmitted[:7], packet._replace(payload=bytes(payload)), *transmitted[8:]]
    one, two = journaled(tmp_path / "a", wrong), journaled(tmp_path / "b", wrong, adapter_id=2)
    assert reconciled(source, one, two) == 1
    text = capsys.readouterr().out
    where = f"channel 1, source stream {run.source_stream_id}, source_seq {run.first_source_seq:,}"
    for journal in (one, two):
        assert f"PROBLEM: {journal}: {where}: " in text
    assert "Tick.symbol: the journal has " in text


def test_where_no_journal_has_the_decisions_the_comparison_ends_and_says_so(
    source: Path, transmitted: list[OutputPacket], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = journaled(tmp_path / "a", [*transmitted[:5], *transmitted[6:]])
    (run,) = transmitted[5].runs
    assert cli.main(["--source-journal", str(source), "--output", str(one), *DOCUMENTS, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    inputs = f"inputs {run.first_input_seq:,}–{run.first_input_seq + run.source_count - 1:,}"
    assert any(f"no journal has the decisions on {inputs}" in each for each in found["conversion"]["ends"])
    assert found["conversion"]["compared_count"] == {str(one): run.first_input_seq - 1}


def test_a_conversion_needs_the_source_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--output", str(tmp_path), *DOCUMENTS])
    assert "give --source-journal: its messages are converted again" in capsys.readouterr().err


def test_only_the_channels_of_the_given_table_are_converted_again(
    source: Path, transmitted: list[OutputPacket], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = [packet._replace(channel_id=2, payload=packet.payload[:-1] + b"\xff") for packet in transmitted]
    journal = journaled(tmp_path / "a", [*transmitted, *other])  # channel 2: as if another table had made it
    assert reconciled(source, journal) == 1
    assert "PROBLEM: " in capsys.readouterr().out
    assert reconciled(source, journal, options=["--channel", "1"]) == 0
    assert f"{journal}: {COUNT:,} source messages converted again, {COUNT:,} with" in capsys.readouterr().out
