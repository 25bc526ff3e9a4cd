"""The processes that send a feed's source packets, as they report themselves.

A gateway reports once a second. One that stops reporting without a last report is dead: only then does its silence say
something, so an orderly stop is not an alarm.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from tandemfeed.v1 import admin_pb2

DEAD_AFTER_NS = 5_000_000_000  # five reports: a busy machine is late with one or two
KEPT_COUNT = 4  # of each feed; a new process replaces the oldest that no longer reports


@dataclass(slots=True)
class _Source:
    identity: str
    report: admin_pb2.SourceReport
    heard_at_ns: int
    heard_unix_ns: int
    vouches: bool

    def is_reporting(self, now_ns: int, resumed_at_ns: int = 0) -> bool:
        return not self.report.is_stopping and self.silence_ns(now_ns, resumed_at_ns) <= DEAD_AFTER_NS

    def silence_ns(self, now_ns: int, resumed_at_ns: int) -> int:
        return now_ns - max(self.heard_at_ns, resumed_at_ns)


class FeedSources:
    """The sources of one feed. Safe to call from any thread."""

    def __init__(self) -> None:
        self._known: dict[bytes, _Source] = {}  # by the nonce of the process, the longest known first
        self._lock = threading.Lock()

    def note(
        self,
        identity: str,
        report: admin_pb2.SourceReport,
        now_ns: int,
        now_unix_ns: int,
        *,
        vouches: bool = False,
    ) -> None:
        """Keep a report. A process that begins to report replaces those that have ended.

        Args:
            vouches: the identity may send the feed's source packets, so its word on the session counts.
        """
        nonce = report.process_nonce
        with self._lock:
            if nonce not in self._known:
                self._known = {key: each for key, each in self._known.items() if each.is_reporting(now_ns)}
                for oldest in list(self._known)[: max(len(self._known) - KEPT_COUNT + 1, 0)]:
                    del self._known[oldest]
            self._known[nonce] = _Source(identity, report, now_ns, now_unix_ns, vouches)

    @property
    def newest_session(self) -> int:
        """The latest session that a source has reported; 0: none has reported."""
        with self._lock:
            return max((each.report.session for each in self._known.values() if each.vouches), default=0)

    def statuses(self, now_ns: int, resumed_at_ns: int = 0) -> list[admin_pb2.SourceStatus]:
        """The sources, for administrators. Args: resumed_at_ns: when this server's last pause ended."""
        with self._lock:
            return [
                admin_pb2.SourceStatus(
                    identity=each.identity,
                    report=each.report,
                    heard_unix_ns=each.heard_unix_ns,
                    silence_ns=each.silence_ns(now_ns, resumed_at_ns),
                    is_dead=not each.report.is_stopping and not each.is_reporting(now_ns, resumed_at_ns),
                )
                for each in self._known.values()
            ]
