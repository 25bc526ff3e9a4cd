"""A reader beside a drill: it catches up again and again, is paused at random times, and counts what is wrong.

A reader that is far behind and does not run for a while meets what a reader of live messages never does: old signatures
after new packets, sockets that overflowed, replays that wait. None of it is a reason to accuse an adapter. It runs as
`python -m tandemfeed.deploy.drills.observer OPTIONS` until its standard input ends or says anything, then reports.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypedDict, cast, get_args

import numpy as np
from numpy.typing import NDArray

from tandemfeed.client_lib import Batch, Client, Distrusted
from tandemfeed.client_lib.commands.running import client_of
from tandemfeed.client_lib.stream.trust.stream_trust import VerifyMode
from tandemfeed.deploy.cluster.processes import ManagedProcess
from tandemfeed.deploy.command import apply_placement
from tandemfeed.deploy.drills.application import Application
from tandemfeed.feedcore.wire.output_packet import RETRANSMISSION_BIT
from tandemfeed.runtime.threads import end_process, start_thread
from tandemfeed.transport.process_shell import (
    add_connection_arguments,
    announce,
    announce_ready,
    configure_logging,
    connection_from,
)

POLL_S = 0.2
PASS_S_MAX = 60.0
LIVE_S = 1.0  # how long it reads live messages if it has fewer to catch up
RETRY_S = 0.5  # after a pass that could not begin, because the admin server or an adapter was away
RUN_S = (0.05, 1.5)  # how long it runs between two pauses
PAUSES_S = (0.02, 0.12, 0.12, 0.3, 1.0, 2.5)  # a socket's queue overflows within the longer ones


class Findings(TypedDict):
    """What an observer reports at its end. `errors` are passes that ended early; they are not faults of the cluster."""

    passes: int
    delivered: int
    missing: int
    repeated: int
    distrusted: int
    errors: dict[str, int]


class Checked(Application):
    """One pass; it checks, and keeps no message."""

    def _keep(self, part: NDArray[np.void], at_ns: int) -> None:
        pass


class Observer:
    """Catches up pass by pass.

    Args:
        message_count: messages of one pass.
        verify: as for `client.subscribe`. With "alarm", a forged packet may take the place of a genuine one, as the
            alarm says.
    """

    def __init__(
        self, client: Client, feed: str, message_count: int, verify: VerifyMode, is_stopped: threading.Event
    ) -> None:
        self._client, self._feed, self._message_count = client, feed, message_count
        self._verify, self._is_stopped = verify, is_stopped
        self._counts: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()

    def run(self) -> Findings:
        """Catch up until it is stopped."""
        while not self._is_stopped.is_set():
            checked = Checked(lambda: None, starts_live=False)
            try:
                self._catch_up(checked)
                self._counts["passes"] += 1
            except Exception as failed:  # noqa: BLE001 - whatever ends a pass is counted, by its name
                self._errors[f"{type(failed).__name__}: {failed}"[:200]] += 1
                self._is_stopped.wait(RETRY_S)
            for name in ("delivered", "missing", "repeated"):
                self._counts[name] += getattr(checked, name)
        counts = {name: self._counts[name] for name in Findings.__annotations__ if name != "errors"}
        return cast(Findings, {**counts, "errors": dict(self._errors)})

    def _catch_up(self, checked: Application) -> None:
        until_s, is_live = time.monotonic() + PASS_S_MAX, False
        with self._client.subscribe(feed=self._feed, start="first", verify=self._verify) as subscription:
            while checked.delivered < self._message_count and time.monotonic() < until_s:
                if self._is_stopped.is_set() or subscription.is_closed or subscription.has_ended:
                    break
                for item in subscription.poll(POLL_S):
                    if isinstance(item, Batch):
                        checked.take_batch(item)
                        if not is_live and not item.packet.flags & RETRANSMISSION_BIT:
                            until_s, is_live = min(until_s, time.monotonic() + LIVE_S), True
                    elif isinstance(item, Distrusted):
                        self._counts["distrusted"] += 1


class Pauser:
    """Pauses a process at random times (SIGSTOP, SIGCONT), in a thread of its own.

    Args:
        chance: decides the times; equal seeds give equal times.
    """

    def __init__(self, process: ManagedProcess, chance: random.Random) -> None:
        self._process, self._chance = process, chance
        self._is_stopped = threading.Event()
        self.pause_count = 0
        self._thread = start_thread(self._run, "pauser", end_process)

    def stop(self) -> None:
        """Let the process run from now on."""
        self._is_stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_stopped.wait(self._chance.uniform(*RUN_S)):
            self._process.pause()
            self.pause_count += 1
            try:
                self._is_stopped.wait(self._chance.choice(PAUSES_S))
            finally:
                self._process.resume()


def main(argv: Sequence[str] | None = None) -> int:
    """Catch up with a feed again and again, until standard input says anything or ends."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="observer", description=main.__doc__)
    parser.add_argument("--feed", required=True, metavar="NAME", help="name of the feed")
    parser.add_argument("--messages", type=int, default=1_000_000, metavar="N", help="messages of a pass")
    parser.add_argument("--verify", choices=get_args(VerifyMode), default="alarm", help="as for subscribe")
    add_connection_arguments(parser)
    arguments = parser.parse_args(argv)
    configure_logging("observer", arguments.log_level)
    connection, is_stopped = connection_from(parser, arguments), threading.Event()

    def await_stop() -> None:
        sys.stdin.readline()
        is_stopped.set()

    start_thread(await_stop, "stdin", end_process)
    with client_of(connection) as client:
        announce_ready(feed=arguments.feed)
        observer = Observer(client, arguments.feed, arguments.messages, arguments.verify, is_stopped)
        findings: dict[str, Any] = {**observer.run()}
    announce("observed", **findings)
    return 0


if __name__ == "__main__":
    apply_placement()
    raise SystemExit(main())
