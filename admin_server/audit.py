"""The audit log: one JSON line for everything granted, refused or changed; only ever appended."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path


class AuditLog:
    """An append-only file. Secrets and keys never go in."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()

    def write(self, event: str, **fields: object) -> None:
        """Append one line; a single write, so that lines never mix."""
        line = json.dumps({"unix_ns": time.time_ns(), "event": event, **fields}, default=str) + "\n"
        with self._lock:
            os.write(self._fd, line.encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
