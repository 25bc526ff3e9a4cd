"""Network isolation, each case in a process of its own, since a process enters a namespace once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHOW = """
import json, os
links = [line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:]]
namespace = os.readlink("/proc/self/ns/net")
print(json.dumps({"links": links, "state": os.environ.get("TANDEMFEED_ISOLATED"), "namespace": namespace}))
"""
ENTER_WITH_A_THREAD = """
import threading
from deploy.isolation import enter_isolated_network
stop = threading.Event()
thread = threading.Thread(target=stop.wait)
thread.start()
try:
    enter_isolated_network()
finally:
    stop.set()
"""


def run(*command: str, state: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run with no inherited isolation state but `state`."""
    environment = {name: value for name, value in os.environ.items() if name != "TANDEMFEED_ISOLATED"}
    if state is not None:
        environment["TANDEMFEED_ISOLATED"] = state
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture(scope="module")
def isolated() -> dict[str, object]:
    """What a command sees inside; skips where no namespace can be made, for then there is nothing to see."""
    ended = run("-m", "deploy.isolation", sys.executable, "-c", SHOW)
    assert ended.returncode == 0, ended.stderr
    if "isolated in a network namespace of its own" not in ended.stderr:
        assert ended.stderr.startswith("no network namespace can be made here (")
        pytest.skip(ended.stderr.strip())
    shown: dict[str, object] = json.loads(ended.stdout)
    return shown


def test_a_command_inside_has_a_namespace_with_the_loopback_interface(isolated: dict[str, object]) -> None:
    assert isolated["state"] == "1"
    assert isolated["namespace"] != os.readlink("/proc/self/ns/net")
    links = isolated["links"]
    assert isinstance(links, list)
    assert "lo" in links
    assert not [name for name in links if name.startswith(("eth", "en", "wl"))]


def test_what_is_isolated_already_is_not_isolated_again(isolated: dict[str, object]) -> None:
    inner = run("-m", "deploy.isolation", sys.executable, "-c", SHOW, state="1")
    assert inner.returncode == 0
    assert json.loads(inner.stdout)["namespace"] == os.readlink("/proc/self/ns/net")
    assert inner.stderr == ""  # said once, by whoever entered


def test_a_user_who_declines_stays_outside() -> None:
    outside = run("-m", "deploy.isolation", sys.executable, "-c", SHOW, state="0")
    assert json.loads(outside.stdout)["namespace"] == os.readlink("/proc/self/ns/net")
    said = run("-c", "from deploy.isolation import *; print(enter_isolated_network().text)", state="0")
    assert "using the loopback interface" in said.stdout


def test_a_process_with_threads_is_told_that_it_is_too_late() -> None:
    ended = run("-c", ENTER_WITH_A_THREAD)
    assert ended.returncode == 1
    assert "must come before any thread" in ended.stderr


def test_the_command_s_exit_status_and_a_missing_command_are_reported() -> None:
    assert run("-m", "deploy.isolation", "--", sys.executable, "-c", "raise SystemExit(7)").returncode == 7
    missing = run("-m", "deploy.isolation", "no-such-command")
    assert missing.returncode == 127
    assert "no-such-command" in missing.stderr
    assert run("-m", "deploy.isolation").returncode == 2


def test_isolation_imports_the_standard_library_alone() -> None:
    ended = run("-S", "-I", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); import deploy.isolation")
    assert ended.returncode == 0, ended.stderr
