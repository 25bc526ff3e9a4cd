"""The whole house, end to end: the demo and a ten-round drill, as users run them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.demo import main as demo
from deploy.drill import main as drill

pytestmark = [pytest.mark.spark, pytest.mark.processes]


@pytest.mark.timeout(240)
def test_the_demo_loses_repeats_and_reorders_nothing_across_two_kills(tmp_path: Path) -> None:
    figures_path, page = tmp_path / "demo.json", tmp_path / "demo.html"
    assert demo(["--seconds", "14", "--rate", "10000", "--json", str(figures_path), "--html", str(page)]) == 0
    figures = json.loads(figures_path.read_text())
    assert figures["sent"] == figures["delivered"] == 140_000
    assert figures["lost"] == figures["duplicated"] == figures["out_of_order"] == figures["content_wrong"] == 0
    assert len(figures["takeovers"]) >= 2
    assert set(figures["latency_us"]) == {"p50", "p99", "max"}
    assert "<svg" in page.read_text()


@pytest.mark.timeout(400)
def test_ten_kills_at_20000_messages_a_second_lose_nothing(tmp_path: Path) -> None:
    figures_path = tmp_path / "drill.json"
    arguments = ["--fault", "kill-active", "--rounds", "10", "--rate", "20000", "--json", str(figures_path)]
    assert drill([*arguments, "--html", str(tmp_path / "drill.html")]) == 0
    figures = json.loads(figures_path.read_text())
    assert figures["delivered"] == figures["sent"] == 1_060_000
    assert len(figures["takeovers"]) >= 10


@pytest.mark.timeout(300)
def test_killing_sparks_driver_in_mid_batch_changes_nothing_for_clients(tmp_path: Path) -> None:
    figures_path = tmp_path / "drill.json"
    arguments = ["--fault", "kill-driver", "--rounds", "2", "--rate", "10000", "--json", str(figures_path)]
    assert drill([*arguments, "--html", str(tmp_path / "drill.html")]) == 0
    figures = json.loads(figures_path.read_text())
    assert figures["delivered"] == figures["sent"] == 270_000
    assert any("started it again" in fault for fault in figures["faults"])
