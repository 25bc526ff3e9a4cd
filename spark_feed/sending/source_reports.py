"""The gateway's reports to the admin server, so that operators see a dead gateway as dead. In a thread of its own.

Each answer says which tokens the gateway must accept, and what it must seal with. The admin server may be away: the
gateway sends on, and reports again when it is back.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import grpc

from tandemfeed.journal import JournalError
from tandemfeed.runtime.threads import end_process, start_thread
from tandemfeed.spark_feed.journaling.committed_records import CommittedEnd
from tandemfeed.spark_feed.sending.source_keys import use_present_key
from tandemfeed.transport.calls.admin_servers import AdminServers
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.login import AuthenticationRefused
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.transport.calls.token_source import TokenSource
from tandemfeed.transport.calls.tokens import TokenVerifier
from tandemfeed.transport.process_shell import Connection
from tandemfeed.transport.sealing.source_sealing import SourceSealer
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc

LOG = logging.getLogger(__name__)
REPORT_INTERVAL_S = 1.0
REPORT_TIMEOUT_S = 3.0
NONCE_SIZE = 16


class Progress(NamedTuple):
    """How far a gateway has come.

    Attributes:
        packet_count: sent since its start.
        position: in the journal, after the last record that was sent.
        journal: the source journal of the present session; None: there is none, or the report says what is unsent.
    """

    packet_count: int
    position: int = 0
    journal: Path | None = None


class _Unsent:
    """Counts the records that are committed and not sent."""

    def __init__(self) -> None:
        self._journal: Path | None = None
        self._committed: CommittedEnd | None = None

    def count(self, progress: Progress) -> int:
        """Of the present session's journal.

        Raises:
            JournalError, OSError: it cannot be read.
        """
        if progress.journal != self._journal:
            self.close()
            self._committed = None if progress.journal is None else CommittedEnd(progress.journal)
            self._journal = progress.journal
        if self._committed is None:
            return 0
        return max(self._committed.next_record_index - progress.position, 0)

    def close(self) -> None:
        """Release the journal."""
        if self._committed is not None:
            self._committed.close()
        self._journal = self._committed = None


class SourceReporter:
    """Reports once a second, unless asked to report more often, from `start` to `stop`.

    Args:
        describe: fills in the session, the positions and whether everything has been sent.
        verifier: of the replay service; receives which tokens it must accept.
        sealer: receives the source's present key; None: the feed does not seal its source packets.
        interval_s: between reports.
        on_answer: called with each answer, before the next report is made.
        clock_s: monotonic time.
    """

    def __init__(
        self,
        connection: Connection,
        feed: str,
        describe: Callable[[admin_pb2.SourceReport], Progress],
        verifier: TokenVerifier,
        sealer: SourceSealer | None,
        interval_s: float = REPORT_INTERVAL_S,
        on_answer: Callable[[admin_pb2.SourceReported], None] = lambda _answer: None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock_s = clock_s
        self._verifier, self._sealer, self._interval_s, self._on_answer = verifier, sealer, interval_s, on_answer
        self._servers = AdminServers(connection.admin)
        self._ca_pem = connection.ca_pem
        self._tokens = TokenSource(self._servers, connection.ca_pem, connection.identity, connection.credential)
        self._process = admin_pb2.SourceReport(
            feed=feed,
            process_nonce=secrets.token_bytes(NONCE_SIZE),
            process_id=os.getpid(),
            host=socket.gethostname(),
        )
        self._describe = describe
        self._last: tuple[int, float] | None = None
        self._is_cut_off = False
        self._stopped, self._due = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin. Without reports a gateway learns of no new key, token or term, so their unexpected end ends it."""
        self._thread = start_thread(self._run, "source-reports", end_process)

    def hurry(self) -> None:
        """Send the next report at once. For any thread."""
        self._due.set()

    def stop(self) -> None:
        """Send the last report, which says that the gateway was asked to stop."""
        self._stopped.set()
        self._due.set()
        if self._thread is not None:
            self._thread.join(2 * REPORT_TIMEOUT_S)

    def _run(self) -> None:
        while True:
            address = self._servers.current
            try:
                self._report_to(address)
            except (grpc.RpcError, AuthenticationRefused, OSError) as failed:
                if self._tokens.renew_after(failed):
                    continue
                pause_s = self._servers.move_on(address, failed)
                level = logging.DEBUG if self._is_cut_off else logging.WARNING  # warn once per outage
                LOG.log(level, "could not report to the admin server; retrying", extra={"why": str(failed)[:300]})
                self._is_cut_off = True
                if self._stopped.wait(max(pause_s, self._interval_s)):
                    return
            else:
                return

    def _report_to(self, address: str) -> None:
        """Report to this server until the gateway stops, or a report fails."""
        with (
            open_channel(address, self._ca_pem, ADMIN_SERVER, self._tokens) as channel,
            closing(_Unsent()) as unsent,
        ):
            send = admin_pb2_grpc.AdapterRegistryStub(channel).ReportSource
            is_stopping = False
            while not is_stopping:
                is_stopping = self._stopped.is_set()
                answer = send(self._present(unsent, is_stopping=is_stopping), timeout=REPORT_TIMEOUT_S)
                self._tokens.adopt_trust(answer, self._verifier)
                if self._sealer is not None:
                    use_present_key(self._sealer, answer.source_keys)
                self._on_answer(answer)
                self._servers.answered(address)
                if self._is_cut_off:
                    LOG.info("reporting again", extra={"server": address})
                    self._is_cut_off = False
                if not is_stopping:
                    self._due.wait(self._interval_s)
                    self._due.clear()

    def _present(self, unsent: _Unsent, *, is_stopping: bool) -> admin_pb2.SourceReport:
        report = admin_pb2.SourceReport(is_stopping=is_stopping)
        report.MergeFrom(self._process)
        progress = self._describe(report)
        count, now_s = progress.packet_count, self._clock_s()
        if self._last is not None and now_s > self._last[1]:
            report.packets_per_second = round(max(count - self._last[0], 0) / (now_s - self._last[1]))
        self._last = count, now_s
        if progress.journal is not None:
            with suppress(JournalError, OSError):  # the number is for people; the gateway itself reports damage
                report.unsent_record_count = unsent.count(progress)
        return report
