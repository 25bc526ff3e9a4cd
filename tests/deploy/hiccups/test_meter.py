"""The meter as a process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tandemfeed.deploy.hiccups.meter import HiccupMeter
from tandemfeed.deploy.hiccups.record import MS, Hiccups


@pytest.mark.processes
def test_a_pause_of_the_machine_shows_in_the_window_in_which_it_happened(tmp_path: Path) -> None:
    with HiccupMeter(tmp_path) as meter:
        meter.process.pause()  # to the meter, as if the machine did nothing
        from_ns = time.monotonic_ns()
        time.sleep(0.1)
        until_ns = time.monotonic_ns()
        meter.process.resume()
        hiccups = meter.stop()
    assert hiccups.longest_ms(from_ns, until_ns) >= (until_ns - from_ns) / MS - 10
    assert meter.process.await_event("hiccups", 1.0)["milliseconds"] == hiccups.figures()


@pytest.mark.processes
def test_a_meter_that_ends_before_its_first_sleep_still_records_the_time_until_then(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    command = [sys.executable, "-m", "tandemfeed.deploy.hiccups.meter", "--seconds", "0", "--record", str(record)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert Hiccups.from_json(json.loads(record.read_text())).counts
