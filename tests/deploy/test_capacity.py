"""The arithmetic of capacity, and where its costs come from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tandemfeed.deploy.capacity import cli
from tandemfeed.deploy.capacity.model import WIRE_OVERHEAD, Costs, Load, capacity

COSTS = Costs(
    adapter_datagrams_per_s=20_000,  # 50 µs
    decision_us=10,
    client_copy_us=10,
    client_message_us=1,
    gateway_packet_us=20,
    rows_per_s_local1=100_000,
)
LOAD = Load(peak_per_s=1_600_000, daily=3.6e9, source_bytes=64, output_bytes=74)


def test_a_load_of_round_figures_needs_what_one_computes_by_hand() -> None:
    found = capacity(LOAD, COSTS)
    assert found.source_packets_per_s == found.output_packets_per_s == 100_000  # 16 messages each
    assert found.feeds == 12  # 100,000 packets of 60 µs, half of each core
    assert (found.adapters, found.adapter_cores, found.groups) == (24, 48, 36)
    assert found.gateway_cores == 4  # 2 seconds of work
    assert found.executor_cores == 32
    assert found.client_processes == 8  # 200,000 copies of 10 µs, 1.6 million messages of 1 µs, half of each core
    output = 1_600_000 * 74 + 100_000 * (LOAD.datagram_size - LOAD.output_room)
    assert found.output_bits_per_s == pytest.approx(2 * 8 * (output + 100_000 * WIRE_OVERHEAD))
    assert found.journal_bytes_per_s == pytest.approx(output / 12)
    assert found.journal_bytes_a_day == pytest.approx(2 * output * 3.6e9 / 1.6e6)
    assert found.client_link_gbits == 10


def test_a_day_may_be_numbered_ahead_of_play_and_a_feed_may_have_no_backup() -> None:
    assert capacity(replace(LOAD, ahead_s=36_000), COSTS).executor_cores == 2  # 100,000 rows a second
    alone = capacity(replace(LOAD, backups=0), COSTS)
    assert (alone.feeds, alone.adapters, alone.groups) == (10, 10, 20)  # no decisions to open


def test_messages_that_do_not_fit_one_output_packet_need_two() -> None:
    found = capacity(replace(LOAD, output_bytes=100), COSTS)
    assert (found.source_packets_per_s, found.output_packets_per_s) == (100_000, 200_000)


@pytest.mark.parametrize(
    ("wrong", "story"),
    [
        ({"peak_per_s": 0}, "the peak is 0"),
        ({"daily": 5}, "at least those of the peak second"),
        ({"use": 1.5}, "the use is 1.5"),
        ({"datagram_size": 9_000}, "576 to 8192"),
        ({"output_bytes": 2_000}, "an output message is 2000"),
    ],
)
def test_an_impossible_load_is_refused(wrong: dict[str, float], story: str) -> None:
    with pytest.raises(ValueError, match=story):
        replace(LOAD, **wrong)  # type: ignore[arg-type]


def test_figures_of_a_benchmark_replace_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "adapter.json").write_text('{"adapter_datagrams_per_s": 40000, "rate_ratio": 0.5}')
    options = ["--peak", "1e6", "--daily", "1e9", "--json"]
    assert cli.main(options) == 0
    before = json.loads(capsys.readouterr().out)
    assert cli.main([*options, "--bench", str(tmp_path / "adapter.json")]) == 0
    after = json.loads(capsys.readouterr().out)
    assert after["costs"]["adapter_datagrams_per_s"] == 40_000
    assert after["capacity"]["feeds"] < before["capacity"]["feeds"]
    (tmp_path / "other.json").write_text("{}")
    assert cli.main([*options, "--bench", str(tmp_path / "other.json")]) == 2
    assert "has no figure that is a cost" in capsys.readouterr().err


def test_a_file_of_costs_must_have_all_of_them(tmp_path: Path) -> None:
    (tmp_path / "costs.toml").write_text("decision_us = 5\nsurprise = 1\n")
    with pytest.raises(ValueError, match=r"adapter_datagrams_per_s.*surprise.*: missing or unknown"):
        cli.read_costs(tmp_path / "costs.toml", [])
