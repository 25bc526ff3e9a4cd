"""Runs every test in a separate network namespace if the system allows it, and sets no deadlines."""

from __future__ import annotations

from hypothesis import settings

from tandemfeed.deploy.isolation import enter_isolated_network

pytest_plugins = ["tests.interruption"]
# Must run at import, before any thread or child process starts.
ISOLATION = enter_isolated_network()

# A test must not fail because the machine is busy; benchmarks/ measures speed.
settings.register_profile("untimed", settings.get_profile(settings.get_current_profile_name()), deadline=None)
settings.load_profile("untimed")


def pytest_report_header() -> str:
    """Show whether the tests are isolated."""
    return ISOLATION.text
