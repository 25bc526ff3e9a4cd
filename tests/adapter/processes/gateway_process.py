"""A source gateway of `running_server`'s cluster, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.admin_server.cluster_files import Server


def start_gateway(
    server: Server, feed: str, rate: int, *more: str, journal: Path | None = None, journals: Path | None = None
) -> subprocess.Popen[str]:
    """Start it; its standard input and output are pipes.

    Args:
        rate: messages per second.
        more: further options.
        journal: of one session.
        journals: the folder of the journals of all sessions.
    """
    state = server.folder.path
    options = {
        "feed": feed,
        "journal": journal,
        "journals": journals,
        "rate": rate,
        "admin": server.endpoint,
        "ca": state / "ca.pem",
        "identity": "source",
        "secret-file": state / "secrets" / "source.secret",
        "tls-cert": state / "certs" / "source.crt",
        "tls-key": state / "certs" / "source.key",
    }
    arguments = [text for key, value in options.items() if value is not None for text in (f"--{key}", str(value))]
    code = "from tandemfeed.spark_feed.sending.command import main; raise SystemExit(main())"
    command = [sys.executable, "-c", code, *arguments, *more]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
