"""The process next to an adapter that reports its death: `lifeline` starts it.

It begins with the adapter's priority, which it needs when the adapter dies. So it imports next to nothing itself, and
`guard` in the background: it starts while the adapter joins streams that are running.
"""

from __future__ import annotations

import importlib
import sys

from tandemfeed.transport.scheduling import call_in_background

if __name__ == "__main__":
    guard = call_in_background(lambda: importlib.import_module("tandemfeed.adapter.reporting.guard"))
    guard.watch(int(sys.argv[1]))
