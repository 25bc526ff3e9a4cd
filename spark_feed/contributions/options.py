"""The options of a contribution gateway."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tandemfeed.spark_feed.contributions.book import Limits


@dataclass(frozen=True, slots=True)
class ContributionOptions:
    """Options of one run.

    Attributes:
        folder: of the log, for one session.
        source_format: what contributed messages must fit.
        endpoint: that of the cluster file at which this gateway serves; `rpc_listen` may name all interfaces.
        log_listen: "HOST:PORT" at which it replicates its log; port 0: any.
        messages_per_second: of each source stream.
        session: the session to send; 0: the feed's.
        former_folder: that of the session before: its pending messages and its producers continue in this one, and
            adapters fill gaps in it.
        clock_ns: monotonic time. wall_clock_ns: in ns since 1970.
    """

    feed: str
    folder: Path
    source_format: Path
    endpoint: str
    rpc_listen: str
    log_listen: str
    tls_certificate: bytes
    tls_key: bytes = field(repr=False)
    messages_per_second: int = 20_000
    limits: Limits = field(default_factory=Limits)
    session: int = 0
    former_folder: Path | None = None
    reflection: bool = False
    clock_ns: Callable[[], int] = time.monotonic_ns
    wall_clock_ns: Callable[[], int] = time.time_ns
