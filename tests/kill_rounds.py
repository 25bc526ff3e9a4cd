"""How often tests kill a process: a few times, or as often as the environment says."""

from __future__ import annotations

import os


def kill_rounds(usual: int) -> int:
    """The rounds of a test. TANDEMFEED_KILL_ROUNDS=50 replaces the usual number."""
    return int(os.environ.get("TANDEMFEED_KILL_ROUNDS", usual))
