"""Network isolation. Each case runs in its own process, because a process can enter a namespace only once."""

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
from tandemfeed.deploy.isolation import enter_isolated_network
stop = threading.Event()
thread = threading.Thread(target=stop.wait)
thread.start()
try:
    enter_isolated_network()
finally:
    stop.set()
"""


def run(*command: str, state: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python with this isolation state, and none inherited."""
    environment = {name: value for name, value in os.environ.items() if name != "TANDEMFEED_ISOLATED"}
    if state is not None:
        environment["TANDEMFEED_ISOLATED"] = state
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture(scope="module")
def isolated() -> dict[str, object]:
    """What a command sees in the namespace; skips the test if this machine cannot make one."""
    ended = run("-m", "tandemfeed.deploy.isolation", sys.executable, "-c", SHOW)
    assert ended.returncode == 0, ended.stderr
    if "running in a separate network namespace" not in ended.stderr:
        assert ended.stderr.startswith("cannot make a network namespace (")
        pytest.skip(ended.stderr.strip())
    shown: dict[str, object] = json.loads(ended.stdout)
    return shown


def test_an_isolated_command_has_only_the_loopback_interface(isolated: dict[str, object]) -> None:
    assert isolated["state"] == "1"
    assert isolated["namespace"] != os.readlink("/proc/self/ns/net")
    links = isolated["links"]
    assert isinstance(links, list)
    assert "lo" in links
    assert not [name for name in links if name.startswith(("eth", "en", "wl"))]


def test_an_isolated_process_is_not_isolated_again(isolated: dict[str, object]) -> None:
    inner = run("-m", "tandemfeed.deploy.isolation", sys.executable, "-c", SHOW, state="1")
    assert inner.returncode == 0
    assert json.loads(inner.stdout)["namespace"] == os.readlink("/proc/self/ns/net")
    assert inner.stderr == ""  # reported once, by the process that entered


def test_a_user_can_decline_isolation() -> None:
    outside = run("-m", "tandemfeed.deploy.isolation", sys.executable, "-c", SHOW, state="0")
    assert json.loads(outside.stdout)["namespace"] == os.readlink("/proc/self/ns/net")
    declined = run("-c", "from tandemfeed.deploy.isolation import *; print(enter_isolated_network().text)", state="0")
    assert "using the loopback interface" in declined.stdout


def test_a_process_with_threads_cannot_be_isolated() -> None:
    ended = run("-c", ENTER_WITH_A_THREAD)
    assert ended.returncode == 1
    assert "before any thread starts" in ended.stderr


def test_the_exit_status_of_the_command_is_passed_on_and_a_missing_command_is_reported() -> None:
    assert run("-m", "tandemfeed.deploy.isolation", "--", sys.executable, "-c", "raise SystemExit(7)").returncode == 7
    missing = run("-m", "tandemfeed.deploy.isolation", "no-such-command")
    assert missing.returncode == 127
    assert "no-such-command" in missing.stderr
    assert run("-m", "tandemfeed.deploy.isolation").returncode == 2


def test_isolation_imports_only_the_standard_library() -> None:
    ended = run("-S", "-I", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); import tandemfeed.deploy.isolation")
    assert ended.returncode == 0, ended.stderr
