"""The contribution gateways of a feed: the shell around `ContributionTerms`, and its record.

A report is decided, recorded and answered under one lock, which no other part of the feed takes: its holder may wait
for the disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from tandemfeed.admin_server.feed.contributions.contribution_terms import (
    SILENCE_NS_MAX,
    ContributionTerms,
    GatewayClaim,
    Outcome,
    TermRecord,
)
from tandemfeed.admin_server.records.lease_records import ClusterRecords
from tandemfeed.admin_server.settings import FeedSettings
from tandemfeed.v1 import admin_pb2

KIND = "contribution_terms"  # of the documents in the records; a document for each feed
COPY_SIZE_MAX = 16
TEXT_SIZE_MAX = 256
ENDED_STARTS_MAX = 16  # adapters refuse: the last ones
KNOWN_MAX = 4  # gateways whose keys are known: two, and what an operator has replaced


class NoteEvent(Protocol):
    """Logs and audits an event of the feed."""

    def __call__(self, event: str, **fields: object) -> None:
        """See `FeedState.note`."""
        ...


class WrongReport(Exception):
    """A gateway's report cannot be meant; the text says why."""


class ContributionGateways:
    """The gateways of one feed. Safe to call from any thread.

    Args:
        announce: called when a start has ended, of which adapters must know.
        resumed_at_ns: returns when this server's last pause ended, 0 for none.
    """

    def __init__(
        self,
        feed: FeedSettings,
        records: ClusterRecords,
        note: NoteEvent,
        announce: Callable[[], None],
        resumed_at_ns: Callable[[], int] = lambda: 0,
    ) -> None:
        self._feed, self._records, self._note, self._announce = feed, records, note, announce
        self._resumed_at_ns = resumed_at_ns
        self._name = str(feed.feed_id)
        self._lock = threading.Lock()
        self._reports: dict[str, admin_pb2.GatewayReport] = {}  # by endpoint
        self._parts: dict[bytes, str] = {}  # process -> its part, for people
        self._ended_starts: list[bytes] = []
        document = records.documents(KIND).get(self._name) if feed.contribution_endpoints else None
        record = None if document is None else msgspec.msgpack.decode(document, type=TermRecord)
        self._terms = ContributionTerms(len(feed.contribution_endpoints), record, time.monotonic_ns())

    @property
    def endpoint(self) -> str:
        """Where contributors should call: the holder, or else any gateway; empty: the feed takes no contributions."""
        holder = self._terms.holder
        return holder.endpoint if holder is not None else next(iter(self._feed.contribution_endpoints), "")

    def part_of(self, process: bytes) -> str:
        """The part of a reporting process: "holder", "standby", "behind"; empty: it is not a contribution gateway."""
        return self._parts.get(process, "")

    def report(self, source: admin_pb2.SourceReport) -> admin_pb2.GatewayAssignment:
        """Decide about a gateway's report, and record it.

        Raises:
            WrongReport: it names what is not in the settings.
            RecordsUnavailable: nothing was decided.
        """
        report = source.gateway
        self._check(report)
        claim = _claim(source)
        with self._lock:
            now_ns = time.monotonic_ns()
            self._terms.on_resumed(self._resumed_at_ns())
            former = self._terms.holder
            outcome = self._terms.decide(claim, now_ns)
            if outcome.record != self._terms.record:
                self._records.note_document(KIND, self._name, msgspec.msgpack.encode(outcome.record))
                self._terms.on_resumed(time.monotonic_ns())  # meanwhile the other gateways' reports waited for the lock
            has_ended = False
            if self._terms.accept(claim, outcome, now_ns):
                has_ended = self._end_start(former, outcome, report)
                self._reports[report.endpoint] = report
                self._note_part(claim, outcome)
            answer = self._answer(claim, outcome)
        if has_ended:
            self._announce()
        if outcome.event:
            self._note("contribution gateway", gateway=claim.endpoint, term=answer.term, reason=outcome.event)
        return answer

    def accept_loss(self, endpoint: str, reason: str, by: str) -> None:
        """Let the gateway at this address begin the next session, whatever its copy of the present one lacks.

        Raises:
            WrongReport: the settings name no gateway at that address.
        """
        self._check_endpoint(endpoint)
        with self._lock:
            self._terms.accept_loss(endpoint)
        self._note("contributions granted with loss", gateway=endpoint, reason=reason, by=by)

    def ended_starts(self) -> list[bytes]:
        """What adapters refuse: the starts of gateways whose term has ended, by their salts."""
        return list(self._ended_starts)

    # ---- inside ----

    def _end_start(self, former: GatewayClaim | None, outcome: Outcome, report: admin_pb2.GatewayReport) -> bool:
        """Another start of a gateway holds the term now: adapters are to refuse the former one. A start that holds a
        later term again is believed again."""
        if not outcome.is_holder:
            return False
        ended = list(self._ended_starts)
        known = None if former is None else self._reports.get(former.endpoint)
        salt = b"" if known is None else known.start_salt
        if salt and salt != report.start_salt:
            ended = [*(each for each in ended if each != salt), salt][-ENDED_STARTS_MAX:]
        ended = [each for each in ended if each != report.start_salt]
        has_changed = ended != self._ended_starts
        self._ended_starts = ended
        return has_changed

    def _check(self, report: admin_pb2.GatewayReport) -> None:
        self._check_endpoint(report.endpoint)
        copies = (report.copy_id, report.former_copy_id, report.standby_copy_id, report.start_salt)
        texts = (report.log_endpoint, report.log_key, report.state, report.waiting_reason)
        if any(len(each) > COPY_SIZE_MAX for each in copies) or any(len(each) > TEXT_SIZE_MAX for each in texts):
            raise WrongReport("an id or a text of the gateway's report is too long")

    def _check_endpoint(self, endpoint: str) -> None:
        known = self._feed.contribution_endpoints
        if endpoint not in known:
            expected = " or ".join(known) if known else "none: the feed takes no contributions"
            raise WrongReport(
                f"the gateway's address is {endpoint!r}, expected the one in the cluster file as contributions: "
                f"{expected}"
            )

    def _answer(self, claim: GatewayClaim, outcome: Outcome) -> admin_pb2.GatewayAssignment:
        record = outcome.record or TermRecord(0, 0, b"")
        holder = self._terms.holder
        leader = None if holder is None else self._reports.get(holder.endpoint)
        leads = leader is not None and leader.term == record.term and leader.copy_id == record.holder_copy
        return admin_pb2.GatewayAssignment(
            number=claim.number,
            term=record.term,
            is_holder=outcome.is_holder,
            is_takeover=outcome.is_takeover,
            holder_copy_id=record.holder_copy,
            standby_copy_id=record.standby_copy,
            is_over=outcome.is_over,
            reason=outcome.reason,
            log_endpoint=leader.log_endpoint if leads and leader is not None else "",
            log_key=leader.log_key if leads and leader is not None else "",
            follower_keys=[
                each.log_key for endpoint, each in self._reports.items() if endpoint != claim.endpoint and each.log_key
            ],
        )

    def _note_part(self, claim: GatewayClaim, outcome: Outcome) -> None:
        record = outcome.record
        is_standby = record is not None and bool(claim.copy) and claim.copy == record.standby_copy
        self._parts.pop(claim.process, None)
        self._parts[claim.process] = "holder" if outcome.is_holder else "standby" if is_standby else "behind"
        if len(self._parts) > KNOWN_MAX:
            del self._parts[next(iter(self._parts))]


def _claim(source: admin_pb2.SourceReport) -> GatewayClaim:
    report = source.gateway
    return GatewayClaim(
        process=source.process_nonce,
        number=report.number,
        session=source.session,
        copy=report.copy_id,
        endpoint=report.endpoint,
        former_copy=report.former_copy_id,
        term=report.term,
        known_term=report.known_term,
        log_end=report.log_end,
        standby_copy=report.standby_copy_id,
        is_stopping=source.is_stopping,
    )


assert SILENCE_NS_MAX >= 4 * 250_000_000  # reports come four times a second: a lost one costs no term
