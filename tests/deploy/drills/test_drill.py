"""Drills, as users run them: real processes on separate hosts, with real faults. Speed is not asserted."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tandemfeed.deploy.cluster.calibration import Calibration
from tandemfeed.deploy.cluster.network import why_no_network
from tandemfeed.deploy.cluster.topology import Shape
from tandemfeed.deploy.drills.application import CONTENT_DTYPE
from tandemfeed.deploy.drills.drill import ALL, _at_borne_rate, main
from tandemfeed.deploy.drills.rounds import DrillPlan
from tandemfeed.deploy.faults.clients import judge
from tandemfeed.deploy.faults.context import Observed
from tandemfeed.deploy.faults.forging import forge_at
from tandemfeed.deploy.faults.table import FAULTS
from tandemfeed.deploy.isolation import STATE_VARIABLE

ROOT = Path(__file__).resolve().parents[3]
# Messages per second, each in a packet of its own. At 500, five adapters fill two processors; an adapter that restarts
# in the background then takes a minute to return.
SLOW_RATE = 200
processes = pytest.mark.processes


def run_clean_drill(folder: Path, fault: str, *options: str, rate: int = 5_000) -> dict[str, Any]:
    """Run a drill that must lose nothing; returns its row of the ledger.

    If the machine is too busy for it (status 2, which says nothing about messages), it runs again at half the rate.
    """
    figures = folder / "ledger.json"
    files = ["--json", str(figures), "--html", str(folder / "page.html")]
    for attempted_rate in (rate, rate // 2):
        status = main(["--fault", fault, "--rate", str(attempted_rate), *files, *options])
        if status != 2:
            break
    assert status == 0, fault
    (row,) = json.loads(figures.read_text())
    assert row["fault"] == fault
    assert row["sent"] == row["delivered"] > 2 * attempted_rate
    assert row["lost"] == row["duplicated"] == row["out_of_order"] == row["content_wrong"] == 0
    assert "<svg" in (folder / "page.html").read_text()
    checked: dict[str, Any] = row
    return checked


@pytest.mark.long
@processes
@pytest.mark.timeout(480)
@pytest.mark.parametrize(
    ("fault", "shape", "datagrams"),
    [
        ("kill-active", "iterator", "udp"),
        ("pause-active", "coroutine", "zeromq"),
        ("pause-backup", "record", "zeromq"),
        ("pause-admin", "record", "udp"),
        ("cut-active-from-clients", "callbacks", "udp"),
        ("loss-both-lines-5", "batches", "zeromq"),
        ("hand-over", "frames", "zeromq"),
        ("lie", "record", "udp"),
    ],
)
def test_one_fault_of_each_kind_loses_repeats_and_reorders_nothing(
    fault: str, shape: str, datagrams: str, tmp_path: Path
) -> None:
    if FAULTS[fault].needs_network and (reason := why_no_network()):
        pytest.skip(reason)
    row = run_clean_drill(tmp_path, fault, "--rounds", "1", "--shape", shape, "--datagrams", datagrams, rate=2_000)
    assert row["settings"]["datagrams"] == datagrams
    application = {"delivered": row["sent"], "missing": 0, "repeated": 0, "shape": shape, "subscribers": 1}
    assert row["application"] == application
    assert row["rounds"] == 1
    assert set(row["stall_ms"]) == {"p50", "p99", "max"}
    assert row["normal_interarrival_max_ms"] > 0
    if fault.endswith("-active") or fault == "hand-over":
        assert row["takeovers"] >= 1
    if fault == "cut-active-from-clients":
        assert max(row["detail"][0]["served_by"].values()) > 0.9  # only the backup's packets arrived


@pytest.mark.long
@processes
@pytest.mark.timeout(480)
def test_an_application_with_a_durable_cursor_that_is_killed_handles_each_message_once(tmp_path: Path) -> None:
    row = run_clean_drill(tmp_path, "kill-client", "--rounds", "1", rate=2_000)
    found = re.search(r"killed an application 6 times .* it handled ([\d,]+) messages", row["detail"][0]["what"])
    assert found is not None
    assert int(found[1].replace(",", "")) > 2_000


@pytest.mark.long
@processes
@pytest.mark.timeout(480)
def test_a_reader_beside_a_drill_that_catches_up_and_is_paused_misses_repeats_and_accuses_nothing(
    tmp_path: Path,
) -> None:
    row = run_clean_drill(tmp_path, "kill-active", "--rounds", "1", "--observe", "1000000", rate=2_000)
    observer = row["observer"]
    assert observer["passes"] >= 1
    assert observer["delivered"] > 2_000
    assert observer["missing"] == observer["repeated"] == observer["distrusted"] == 0


def test_what_a_durable_application_missed_repeated_or_disordered_is_counted_by_stream() -> None:
    found = np.zeros(9, CONTENT_DTYPE)
    found["stream"] = [1, 2, 1, 2, 1, 2, 1, 2, 2]
    found["source_seq"] = [5, 7, 6, 8, 9, 8, 8, 10, 11]  # 7 of stream 1 and 9 of stream 2 are missing
    observed = Observed()
    assert judge(found, observed) == 9
    assert observed == Observed(lost=2, duplicated=1, out_of_order=1)


def test_a_durable_application_that_handled_nothing_is_a_loss() -> None:
    observed = Observed()
    assert judge(np.zeros(0, CONTENT_DTYPE), observed) == 0
    assert observed.lost > 0


@pytest.mark.long
@processes
@pytest.mark.timeout(480)
def test_forged_packets_change_no_role_and_their_sender_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = replace(FAULTS["forge"], inject=forge_at(rate=1_000.0, seconds=3.0), round_s=12.0)
    monkeypatch.setitem(FAULTS, "forge", short)
    row = run_clean_drill(tmp_path, "forge", "--rounds", "1", rate=2_000)
    assert re.search(
        r"forged \d[\d,]+ packets in .* from \d+\.\d+\.\d+\.\d+:\d+; .+; "
        r"the adapters refused [1-9][\d,]+ as untagged and named the sender",
        row["detail"][0]["what"],
    )


@pytest.mark.long
@processes
@pytest.mark.timeout(480)
def test_replacing_every_key_loses_nothing_for_a_client_by_unicast(tmp_path: Path) -> None:
    row = run_clean_drill(tmp_path, "replace-keys", "--rounds", "1", "--transport", "unicast", rate=1_000)
    assert "replaced the key of tokens and 2 keys" in row["detail"][0]["what"]
    assert row["settings"]["transport"] == "unicast"


@pytest.mark.long
@processes
@pytest.mark.timeout(480)
def test_rounds_take_several_feeds_in_turn(tmp_path: Path) -> None:
    # Nine processes. A third adapter per feed makes eleven, too many for two busy processors (decision 13).
    size = ["--feeds", "2", "--channels", "2", "--streams-per-channel", "1", "--backups", "1"]
    row = run_clean_drill(tmp_path, "kill-active", "--rounds", "2", *size, rate=SLOW_RATE)
    assert [each["feed_id"] for each in row["detail"]] == [1, 2]


@pytest.mark.long
@processes
@pytest.mark.timeout(480)
def test_a_feed_with_four_backups_loses_nothing_when_the_active_is_killed(tmp_path: Path) -> None:
    run_clean_drill(tmp_path, "kill-active", "--rounds", "1", "--backups", "4", rate=SLOW_RATE)


@pytest.mark.long
@processes
@pytest.mark.spark
@pytest.mark.timeout(480)
def test_killing_the_spark_driver_in_mid_batch_changes_nothing_for_clients(tmp_path: Path) -> None:
    row = run_clean_drill(tmp_path, "kill-driver", "--rounds", "1", rate=10_000)
    assert "restarted it" in row["detail"][0]["what"]


@pytest.mark.long
@processes
@pytest.mark.timeout(480)
def test_an_interrupted_drill_leaves_no_process_and_no_link_behind(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "tandemfeed.deploy.isolation",
        sys.executable,
        "-m",
        "tandemfeed.deploy.command",
        "drill",
    ]
    command += ["--rounds", "3", "--rate", "2000", "--html", str(tmp_path / "page.html")]
    environment = {name: value for name, value in os.environ.items() if name != STATE_VARIABLE}
    drill = subprocess.Popen(command, env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert drill.stderr is not None
    for line in drill.stderr:
        if "processes are ready" in line:
            break
    children = children_of(drill.pid)
    assert len(children) >= 5
    drill.send_signal(signal.SIGINT)
    assert "all its processes have ended" in drill.stderr.read()
    assert drill.wait(30) == 130
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]


@pytest.mark.long
@processes
@pytest.mark.timeout(480)
def test_several_subscribers_of_a_host_are_each_given_every_message_once(tmp_path: Path) -> None:
    row = run_clean_drill(tmp_path, "hand-over", "--rounds", "1", "--subscribers", "4", rate=SLOW_RATE)
    assert row["application"]["delivered"] == 4 * row["sent"]
    assert row["settings"]["subscribers"] == row["application"]["subscribers"] == 4


def children_of(pid: int) -> list[str]:
    """The child processes of a process, started by any of its threads."""
    return [child for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]


def test_a_drill_without_a_rate_plays_what_the_machine_bears(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandemfeed.deploy.drills.drill.calibrate", lambda shape: Calibration((800.0,) * 4))
    lines: list[str] = []
    (plan,) = _at_borne_rate([DrillPlan("x", FAULTS["kill-active"], 1, 20_000.0, 1, Shape())], lines.append)
    assert (plan.rate, plan.packets_per_s_max) == (10_000.0, 500.0)
    assert lines[0].startswith("10,000 messages per second, what this machine bears now")


def test_without_isolation_a_fault_that_needs_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(STATE_VARIABLE, "0")
    page = str(tmp_path / "page.html")
    assert main(["--fault", "cut-active", "--rounds", "1", "--html", page]) == 2
    assert "did not run: cut-active: it needs a separate network namespace" in capsys.readouterr().out


def test_the_help_lists_every_fault(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    listing = capsys.readouterr().out
    for name, fault in FAULTS.items():
        assert name in listing
        assert fault.text in listing
        assert fault.inject.__doc__ is not None or "loss" in name
    assert ALL in listing


def test_every_fault_is_in_the_manual() -> None:
    manual = (ROOT / "docs" / "drills.md").read_text()
    assert not [name for name in FAULTS if f"`{name}`" not in manual]


@pytest.mark.parametrize(
    "wrong",
    [
        ["--rounds", "0"],
        ["--subscribers", "0"],
        ["--shape", "x"],
        ["--backups", "9"],
        ["--fault", "sharks"],
        ["--rate", "-1"],
    ],
)
def test_invalid_options_are_refused_before_anything_starts(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(wrong)
    assert ended.value.code == 2
    assert "usage" in capsys.readouterr().err
