"""Every test runs in a network namespace of its own where one can be made, however pytest is started."""

from __future__ import annotations

from deploy.isolation import enter_isolated_network

# At import, before any thread or child: later it would be too late.
ISOLATION = enter_isolated_network()


def pytest_report_header() -> str:
    """Say so."""
    return ISOLATION.text
