"""`tandemfeed hiccups`: measures how long this machine pauses, in a process of its own.

It is a process, not a thread, because a thread would also wait for the interpreter's lock of the process that it is in.
It asks for the same short slices as the processes in the path of a message, so the scheduler treats it alike.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tandemfeed.deploy.cluster.processes import ManagedProcess
from tandemfeed.deploy.hiccups.record import SLEEP_NS, HiccupRecorder, Hiccups
from tandemfeed.transport.process_shell import StopSignal, announce, announce_ready
from tandemfeed.transport.scheduling import request_short_slices

START_TIMEOUT_S = 60.0


def main(argv: Sequence[str] | None = None) -> int:
    """Measure how long this machine pauses: sleep a millisecond again and again, and record by how much each sleep
    lasted too long. Print quantiles and the maximum in milliseconds."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="tandemfeed hiccups", description=main.__doc__)
    parser.add_argument(
        "--seconds", type=float, metavar="S", help="how long to measure (default: until SIGINT or SIGTERM)"
    )
    parser.add_argument("--record", type=Path, metavar="FILE", help="write all windows to FILE as a JSON object")
    arguments = parser.parse_args(argv)
    request_short_slices()
    gc.disable()  # nothing here makes cycles
    stop = StopSignal()
    woke_ns = time.monotonic_ns()
    recorder = HiccupRecorder(woke_ns)
    until_s = time.monotonic() + (arguments.seconds if arguments.seconds is not None else float("inf"))
    announce_ready()
    is_over = False
    while not is_over:  # at the end, what began before the signal counts as well
        is_over = stop.is_set or time.monotonic() >= until_s
        due_ns = woke_ns + SLEEP_NS  # after the last wake-up: a pause between two sleeps counts as well
        time.sleep(SLEEP_NS / 1e9)
        woke_ns = time.monotonic_ns()
        recorder.add(due_ns, woke_ns)
    hiccups = recorder.record()
    if arguments.record is not None:
        arguments.record.write_text(json.dumps(hiccups.as_json()))
    announce("hiccups", milliseconds=hiccups.figures())
    return 0


class HiccupMeter:
    """A meter that runs beside something else; use it in a `with`.

    Args:
        folder: for its record and its log.

    Attributes:
        process: the meter's process.

    Raises:
        ProcessFailed: it did not start.
    """

    def __init__(self, folder: Path) -> None:
        self._record = folder / "hiccups.json"
        self.process = ManagedProcess("hiccups", ["hiccups", "--record", str(self._record)], folder)

    def stop(self) -> Hiccups:
        """End the measurement; returns what was measured.

        Raises:
            ProcessFailed: the meter did not work.
        """
        self.process.terminate()
        self.process.await_event("hiccups", START_TIMEOUT_S)
        self.process.wait(START_TIMEOUT_S)
        return Hiccups.from_json(json.loads(self._record.read_text()))

    def __enter__(self) -> Self:
        self.process.await_event("ready", START_TIMEOUT_S)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.process.stop()


if __name__ == "__main__":
    raise SystemExit(main())
