"""The whole project, end to end: the demo, as users run it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tandemfeed.deploy.demo.demo import main as demo


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.processes
@pytest.mark.timeout(480)
def test_demo_loses_repeats_and_reorders_nothing_across_two_kills(tmp_path: Path) -> None:
    figures_path, page = tmp_path / "demo.json", tmp_path / "demo.html"
    # A killed adapter must be back before the second kill, also on a busy machine, where its start takes 10 s.
    assert demo(["--seconds", "30", "--rate", "5000", "--json", str(figures_path), "--html", str(page)]) == 0
    figures = json.loads(figures_path.read_text())
    assert figures["sent"] == figures["delivered"] == 150_000
    assert figures["lost"] == figures["duplicated"] == figures["out_of_order"] == figures["content_wrong"] == 0
    assert len(figures["takeovers"]) >= 2
    assert set(figures["latency_us"]) == {"p50", "p99", "max"}
    assert "<svg" in page.read_text()


@pytest.mark.parametrize("option", ["--rate", "--seconds", "--ahead"])
def test_a_rate_or_duration_of_zero_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        demo([option, "0"])
    assert f"{option} is 0; it must be greater than 0" in capsys.readouterr().err
