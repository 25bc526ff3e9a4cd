"""Where the client library keeps what outlives a process: durable cursors and loss reports."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def state_folder() -> Path:
    """`XDG_STATE_HOME`, or else `~/.local/state`, and in it `tandemfeed`. It need not exist."""
    try:
        return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "tandemfeed"
    except RuntimeError:  # a user without a home, as in some containers
        return Path(tempfile.gettempdir()) / f"tandemfeed-{os.getuid()}"
