"""Every test runs in a network namespace of its own where one can be made, however pytest is started; none is timed."""

from __future__ import annotations

from hypothesis import settings

from deploy.isolation import enter_isolated_network

# At import, before any thread or child: later it would be too late.
ISOLATION = enter_isolated_network()

# A machine with other work to do is no reason to fail: speed lives in benchmarks/.
settings.register_profile("untimed", settings.get_profile(settings.get_current_profile_name()), deadline=None)
settings.load_profile("untimed")


def pytest_report_header() -> str:
    """Say so."""
    return ISOLATION.text
