"""Runs every test in a separate network namespace if the system allows it, and sets no deadlines."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import settings

from tandemfeed.deploy.cluster.small_disk import own_mounts
from tandemfeed.deploy.isolation import enter_isolated_network

pytest_plugins = ["tests.interruption"]
# Subscriptions keep loss reports there, and must not write to the developer's own.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="tandemfeed-state-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)
# Must run at import, before any thread or child process starts.
ISOLATION = enter_isolated_network()
with suppress(OSError):  # so that the disks of a test that is killed do not stay mounted
    own_mounts()

# A test must not fail because the machine is busy; benchmarks/ measures speed.
settings.register_profile("untimed", settings.get_profile(settings.get_current_profile_name()), deadline=None)
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def _own_scheduling_policy() -> Iterator[None]:
    """Restore the scheduling policy of the test's thread: a queue changes it, and later processes inherit it."""
    if sys.platform != "linux":
        yield
        return
    policy, parameter = os.sched_getscheduler(0), os.sched_getparam(0)
    yield
    os.sched_setscheduler(0, policy, parameter)


@pytest.fixture(autouse=True)
def _own_umask() -> Iterator[None]:
    """Restore the umask, which a command that runs in the process of its test sets for what it stores."""
    umask = os.umask(0o022)
    os.umask(umask)
    yield
    os.umask(umask)


def pytest_report_header() -> str:
    """Show whether the tests are isolated."""
    return ISOLATION.text
