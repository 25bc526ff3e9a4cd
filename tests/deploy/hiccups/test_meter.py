"""The meter as a process."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tandemfeed.deploy.hiccups.meter import HiccupMeter
from tandemfeed.deploy.hiccups.record import MS


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
