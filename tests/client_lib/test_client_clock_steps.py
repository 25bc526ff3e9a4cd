"""Steps of a host's wall clock by an hour, either way: no client is refused, waits for it to catch up, or accuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.stepped_clock import stepped_host


@pytest.mark.processes
def test_no_step_of_the_clock_stops_a_clients_login_messages_contributions_or_history(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.client_lib.stepped_client", tmp_path]
    ended = subprocess.run(
        command, env=stepped_host(tmp_path), capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr[-4_000:]}"
