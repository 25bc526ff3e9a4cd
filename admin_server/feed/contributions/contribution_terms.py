"""Which contribution gateway of a feed holds its contributions, and which other one may be granted the next term. Pure.

Every gateway reports its copy of the log. A record, durable before each answer that depends on it, says which copy is
the holder's and which copy is the standby's. A new term goes only to one of the two, because only they have everything
that was acknowledged; to the standby only when the holder is silent or stops. The former holder need not know: its
standby no longer acknowledges (`spark_feed.contributions.pair.membership`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

NO_COPY = b""
PROCESSES_KEPT = 64  # whose late reports are recognised
SILENCE_NS_MAX = 1_500_000_000  # six reports: a busy machine is late with some
LACKING = "its folder of the former session may lack messages that were acknowledged; give that of the last holder"


@dataclass(frozen=True, slots=True)
class TermRecord:
    """What must survive the admin server.

    Attributes:
        term: the last one that was granted.
        holder_copy: the log of the gateway that was granted it; empty: it has no log yet.
        standby_copy: the other log that has everything that was acknowledged; empty: there is none.
        former_copies: the logs of the former session from which this one may begin, until its first log is recorded.
    """

    session: int
    term: int
    holder_copy: bytes
    standby_copy: bytes = NO_COPY
    former_copies: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class GatewayClaim:
    """A gateway's report.

    Attributes:
        process: names its process.
        number: grows with each report of the process.
        copy: its log; empty: it has none.
        former_copy: the log of the session before, which it carries on; empty: none.
        term: that it holds; 0: none.
        known_term, log_end: of the last holder of which its log has something, and where the log ends.
        standby_copy: what the holder wants recorded.
    """

    process: bytes
    number: int
    session: int
    copy: bytes
    endpoint: str
    former_copy: bytes = NO_COPY
    term: int = 0
    known_term: int = 0
    log_end: int = 0
    standby_copy: bytes = NO_COPY
    is_stopping: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What follows from a report.

    Attributes:
        record: to be made durable before the answer is sent.
        is_takeover: granted to the standby; the record's standby is the former holder.
        event: what changed, for the history; empty: nothing.
    """

    record: TermRecord | None
    is_holder: bool = False
    is_takeover: bool = False
    is_over: bool = False
    reason: str = ""
    event: str = ""


@dataclass(slots=True)
class _Heard:
    claim: GatewayClaim
    at_ns: int


class ContributionTerms:
    """The terms of one feed.

    Args:
        gateway_count: how many gateways the settings name.
        record: what was recorded; None: nothing ever was.

    Attributes:
        record: the present one.
        holder: the report of the gateway that holds the term; None: it has not reported since the server's start.
    """

    def __init__(self, gateway_count: int, record: TermRecord | None, now_ns: int) -> None:
        self._gateway_count = gateway_count
        self.record = record
        self.holder: GatewayClaim | None = None
        self._heard: dict[str, _Heard] = {}  # by endpoint
        self._numbers: dict[bytes, int] = {}  # of the last report of each process, the newest process last
        self._holder_heard_at_ns = self._began_at_ns = now_ns
        self._resumed_at_ns = now_ns
        self._accepts_loss = ""

    def on_resumed(self, now_ns: int) -> None:
        """This server read no reports until now: it was paused, or waited for its disk. No gateway was silent."""
        self._resumed_at_ns = max(self._resumed_at_ns, now_ns)

    def accept_loss(self, endpoint: str) -> None:
        """Let the gateway at this address begin a later session, even if its copy of this one lacks something: an
        operator wants it. In this session it would give numbers that adapters have to other messages.
        """
        self._accepts_loss = endpoint

    def claims(self) -> list[tuple[GatewayClaim, int]]:
        """The last report of each gateway, and when it was heard."""
        return [(each.claim, each.at_ns) for each in self._heard.values()]

    def decide(self, claim: GatewayClaim, now_ns: int) -> Outcome:
        """What follows from a report. Nothing has changed until `accept` is called with the outcome."""
        if self._is_late(claim):
            return Outcome(self.record, reason="a later report of this gateway was answered before")
        record = self.record
        if claim.endpoint == self._accepts_loss and (record is None or claim.session > record.session):
            return self._grant(claim, record, "an operator accepted that messages may be lost")
        if record is not None and claim.session < record.session:
            return Outcome(record, is_over=True, reason=f"session {record.session} has begun")
        if record is None or claim.known_term > record.term or not record.holder_copy:
            return self._first(claim, record, now_ns)
        if claim.session > record.session:
            return self._next_session(claim, record, now_ns)
        if claim.term == record.term and claim.copy == record.holder_copy:
            return self._renew(claim, record)
        if claim.copy and claim.copy == record.holder_copy and not claim.term:
            return self._grant(claim, record, "the holder restarted", standby_copy=record.standby_copy)
        if claim.copy and claim.copy == record.standby_copy and self._is_holder_silent(now_ns):
            # The former holder's copy has everything until the new holder goes on alone, which it must have recorded.
            why = "the holder was silent"
            return replace(self._grant(claim, record, why, standby_copy=record.holder_copy), is_takeover=True)
        return Outcome(record, reason=self._why_waiting(claim, record))

    def accept(self, claim: GatewayClaim, outcome: Outcome, now_ns: int) -> bool:
        """The outcome's record is durable. Returns False if the report is a late one, which changes nothing."""
        if self._is_late(claim):
            return False
        self.record = outcome.record
        if outcome.event:
            self._accepts_loss = ""
        self._heard[claim.endpoint] = _Heard(claim, now_ns)
        self._numbers[claim.process] = claim.number
        if len(self._numbers) > PROCESSES_KEPT:
            del self._numbers[next(iter(self._numbers))]
        if outcome.is_holder:
            self.holder = claim
            self._holder_heard_at_ns = now_ns
        return True

    # ---- inside ----

    def _is_late(self, claim: GatewayClaim) -> bool:
        """Whether a later report of the process was answered before."""
        return claim.number <= self._numbers.get(claim.process, 0)

    def _is_holder_silent(self, now_ns: int) -> bool:
        if self.holder is not None and self.holder.is_stopping:
            return True
        return self._silence_ns(self._holder_heard_at_ns, now_ns) >= SILENCE_NS_MAX

    def _silence_ns(self, heard_at_ns: int, now_ns: int) -> int:
        return now_ns - max(heard_at_ns, self._resumed_at_ns)

    def _renew(self, claim: GatewayClaim, record: TermRecord) -> Outcome:
        if claim.standby_copy == record.standby_copy:
            return Outcome(record, is_holder=True)
        event = "a standby has everything" if claim.standby_copy else "the holder goes on alone"
        return Outcome(replace(record, standby_copy=claim.standby_copy), is_holder=True, event=event)

    def _grant(
        self,
        claim: GatewayClaim,
        record: TermRecord | None,
        why: str,
        *,
        standby_copy: bytes = NO_COPY,
        former: tuple[bytes, ...] = (),
    ) -> Outcome:
        if claim.is_stopping:
            return Outcome(record, reason="it is stopping")
        term = max(claim.known_term, 0 if record is None else record.term) + 1
        if not former and record is not None and not claim.copy:
            former = record.former_copies
        return Outcome(TermRecord(claim.session, term, claim.copy, standby_copy, former), is_holder=True, event=why)

    def _first(self, claim: GatewayClaim, record: TermRecord | None, now_ns: int) -> Outcome:
        """No log is known, or a log is of a later term than the record, which is of a restored backup: the log that is
        furthest ahead counts, once every gateway had the time to report."""
        if record is not None and claim.term == record.term and self.holder and claim.process == self.holder.process:
            if not claim.copy:
                return Outcome(record, is_holder=True)
            made = TermRecord(record.session, record.term, claim.copy)
            return Outcome(made, is_holder=True, event="the holder has made its log")
        if record is not None and record.former_copies and claim.former_copy not in record.former_copies:
            return Outcome(record, reason=LACKING)
        present = [each.claim for each in self._heard.values() if self._silence_ns(each.at_ns, now_ns) < SILENCE_NS_MAX]
        others = [each for each in present if each.endpoint != claim.endpoint and not each.is_stopping]
        waited_ns = self._silence_ns(self._began_at_ns, now_ns)
        if len(others) + 1 < self._gateway_count and waited_ns < 2 * SILENCE_NS_MAX:
            return Outcome(record, reason="waiting for the other gateway's first report")
        if record is not None and not record.holder_copy and not self._is_holder_silent(now_ns):
            return Outcome(record, reason="another gateway begins")
        best = max((each.session, each.known_term, each.log_end) for each in [claim, *others])
        if (claim.session, claim.known_term, claim.log_end) < best:
            return Outcome(record, reason="another gateway's log is further ahead")
        return self._grant(claim, record, "the first holder")

    def _next_session(self, claim: GatewayClaim, record: TermRecord, now_ns: int) -> Outcome:
        if claim.former_copy and claim.former_copy not in (record.holder_copy, record.standby_copy):
            return Outcome(record, reason=LACKING)
        if not self._is_holder_silent(now_ns):
            return Outcome(record, reason=f"the holder of session {record.session} still runs; stop it")
        former = tuple(filter(None, (record.holder_copy, record.standby_copy))) if claim.former_copy else ()
        return self._grant(claim, record, f"session {claim.session} begins", former=former)

    @staticmethod
    def _why_waiting(claim: GatewayClaim, record: TermRecord) -> str:
        if claim.copy and claim.copy == record.standby_copy:
            return ""
        if record.standby_copy:
            return "its copy of the log may lack messages that the holder and another gateway have"
        return "its copy of the log may lack messages that only the holder has"
