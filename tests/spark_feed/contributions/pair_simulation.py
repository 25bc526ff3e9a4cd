"""Two gateways, an admin server and contributors, simulated: the cores decide, chance crashes, pauses and cuts off.

Logs are lists of records, and one step copies, reports, answers or fails something. `Checker` knows nothing of terms:
it compares what contributors were told with what was sent and with the log of the gateway that holds the feed in the
end. It also checks that a gateway or server that was paused does not blame the others for that time.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tandemfeed.admin_server.feed.contributions.contribution_terms import (
    SILENCE_NS_MAX,
    ContributionTerms,
    GatewayClaim,
    Outcome,
    TermRecord,
)
from tandemfeed.spark_feed.contributions.pair.membership import (
    LOOKS_MIN,
    NO_COPY,
    Acknowledge,
    Assignment,
    GatewayState,
    Membership,
)

MS = 1_000_000
PATIENCE_NS = 300 * MS
HOSTS = ("one", "two")
PRODUCERS = 3


class Message(NamedTuple):
    """What names a contribution."""

    producer: int
    number: int


class Record(NamedTuple):
    """A record of a log. Args: kind: "term", "accepted", "numbered", "cancelled"."""

    kind: str
    message: Message
    term: int


class View:
    """What a log says."""

    def __init__(self, log: list[Record]) -> None:
        self.next_numbers: Counter[int] = Counter()
        self.pending: list[Message] = []
        self.numbered: list[Message] = []
        self.cancelled: set[Message] = set()
        self.known_term = 0
        for record in log:
            self.add(record)

    def add(self, record: Record) -> None:
        """A record is appended."""
        self.known_term = max(self.known_term, record.term)
        if record.kind == "accepted":
            self.next_numbers[record.message.producer] += 1
            self.pending.append(record.message)
        elif record.kind != "term":
            self.pending.remove(record.message)
            if record.kind == "numbered":
                self.numbered.append(record.message)
            else:
                self.cancelled.add(record.message)


class Checker:
    """What contributors were told, and what adapters were sent."""

    def __init__(self) -> None:
        self.accepted: set[Message] = set()
        self.cancelled: set[Message] = set()
        self.sent: dict[int, Message] = {}

    def on_sent(self, source_seq: int, message: Message) -> None:
        """A packet left."""
        assert self.sent.setdefault(source_seq, message) == message, f"{source_seq} is {message} and something else"
        assert message not in self.cancelled, f"{message} was cancelled, and sent"

    def on_cancelled(self, message: Message) -> None:
        """A contributor was told so."""
        assert message not in self.sent.values(), f"{message} was sent, and cancelled"
        self.cancelled.add(message)

    def finish(self, log: list[Record]) -> None:
        """The last holder has this log, and everything that could be sent was."""
        view = View(log)
        assert dict(enumerate(view.numbered)).items() >= self.sent.items(), "what was sent is not in the log"
        counts = Counter(view.numbered)
        assert not [each for each, count in counts.items() if count > 1], "a message was sent twice"
        lost = self.accepted - set(view.numbered) - view.cancelled - set(view.pending)
        assert not lost, f"acknowledged, and lost: {sorted(lost)}"
        assert self.cancelled <= view.cancelled, "a cancellation was lost"
        for producer in range(PRODUCERS):
            numbers = [each.number for each in view.numbered if each.producer == producer]
            assert numbers == sorted(numbers), f"producer {producer} was reordered"


@dataclass
class Turn:
    """Records that were appended, and what follows when they are committed."""

    end_index: int
    accepted: list[Message] = field(default_factory=list)
    cancelled: list[Message] = field(default_factory=list)
    numbered: list[tuple[int, Message]] = field(default_factory=list)


class Host:
    """A host: its disk, and its process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.log: list[Record] = []
        self.copy, self.copy_count = b"", 0
        self.is_paused = self.is_cut_off = self.is_cut_from_peer = False
        self.ran_at_ns = self.runs_since_ns = 0  # when it ran last, and since when without a pause
        self.process: Process | None = None

    def new_copy(self) -> None:
        """Begin an empty log."""
        self.copy_count += 1
        self.copy, self.log = f"{self.name}-{self.copy_count}".encode(), []


class Process:
    """A gateway's process."""

    def __init__(self, host: Host, name: bytes, membership: Membership) -> None:
        self.host, self.name, self.membership = host, name, membership
        self.is_reporting = False
        self.follows: Process | None = None
        self.positions: dict[bytes, int] = {}
        self.view: View | None = None
        self.turn: Turn | None = None
        self.unsent: list[tuple[int, Message]] = []


class Simulation:
    """A run.

    Args:
        make, make_terms: so that a test can plant a bug.
        pauses: pause a gateway's process or the server alone, again and again, besides the other faults.
    """

    def __init__(
        self,
        seed: int,
        acknowledge: Acknowledge,
        make: Callable[[Acknowledge, int], Membership] = Membership,
        make_terms: Callable[[int, TermRecord | None, int], ContributionTerms] = ContributionTerms,
        *,
        pauses: bool = False,
    ) -> None:
        self.chance, self.acknowledge, self.make = random.Random(seed), acknowledge, make
        self.pausing = random.Random(seed) if pauses else None
        self.paused: Host | None = None  # a host, or the server
        self.server_is_paused, self.pause_ends_at_ns = False, 0
        self.server_ran_ns = self.holder_heard_at_ran_ns = 0  # by a clock that stands still while the server is paused
        self.make_terms = make_terms
        self.now_ns = 0
        self.hosts = [Host(name) for name in HOSTS]
        self.checker = Checker()
        self.durable: TermRecord | None = None
        self.terms = make_terms(2, None, 0)
        self.requests: list[tuple[Process, GatewayClaim]] = []
        self.answers: list[tuple[Process, Assignment]] = []
        self.next_numbers = [0] * PRODUCERS
        self.process_count = 0
        self.story: list[str] = []

    def run(self, step_count: int) -> None:
        """Faults, then peace, then the check."""
        steps = [self.report, self.deliver, self.answer, self.copy, self.acknowledge_copies, self.serve, self.commit]
        for _ in range(step_count):
            self.pass_time(self.chance.randrange(50 * MS))
            if self.pausing is not None:
                self.pause_one(self.pausing)
            if self.chance.random() < 0.03:
                self.fail()
            for step in self.chance.sample(steps, 3):
                step()
            self.tick()
        self.heal()
        steps.remove(self.serve)
        holder = self.await_peace(steps)
        self.checker.finish(holder.host.log)

    # ---- peace ----

    def heal(self) -> None:
        self.resume()
        for host in self.hosts:
            host.is_paused = host.is_cut_off = host.is_cut_from_peer = False

    def await_peace(self, steps: list[Callable[[], None]]) -> Process:
        for _ in range(120):  # a copy may lack the whole log
            for step in [*steps * 4, self.commit]:
                self.pass_time(20 * MS)
                step()
                self.tick()
            holders = [each for each in self.processes() if each.membership.state is GatewayState.HOLDER]
            if len(holders) == 1 and self.is_finished(holders[0]):
                return holders[0]
        raise AssertionError(f"no holder is done after the faults: {self.durable}, {self.story[-20:]}")

    def is_finished(self, holder: Process) -> bool:
        is_paired = bool(holder.membership.standby_copy)
        is_done = holder.turn is None and not self.is_former(holder)
        return is_done and is_paired and holder.membership.committed_index == len(holder.host.log)

    # ---- time and pauses ----

    def pass_time(self, span_ns: int) -> None:
        self.now_ns += span_ns
        if not self.server_is_paused:
            self.server_ran_ns += span_ns

    def pause_one(self, chance: random.Random) -> None:
        """Pause one side alone for a while: a pause of any length must not be held against others."""
        if self.pause_ends_at_ns:
            if self.now_ns >= self.pause_ends_at_ns:
                self.resume()
        elif chance.random() < 0.05 and not any(host.is_paused for host in self.hosts):
            self.pause_ends_at_ns = self.now_ns + chance.choice([100, 400, 2_000, 9_000]) * MS
            self.paused = chance.choice([None, *self.hosts])
            self.server_is_paused = self.paused is None
            if self.paused is not None:
                self.paused.is_paused = True

    def resume(self) -> None:
        """The side that was paused alone runs again."""
        if self.paused is not None:
            self.paused.is_paused = False
        if self.server_is_paused:
            self.terms.on_resumed(self.now_ns)
        self.paused, self.server_is_paused, self.pause_ends_at_ns = None, False, 0

    # ---- steps ----

    def processes(self) -> list[Process]:
        for host in self.hosts:
            if host.process is None or host.process.membership.state is GatewayState.ENDED:
                self.process_count += 1
                name = str(self.process_count).encode()
                host.process = Process(host, name, self.make(self.acknowledge, PATIENCE_NS))
                host.runs_since_ns = self.now_ns
        return [host.process for host in self.hosts if host.process is not None and not host.is_paused]

    def chosen(self) -> Process | None:
        running = self.processes()
        return self.chance.choice(running) if running else None

    def report(self) -> None:
        for process in self.processes():
            if process.is_reporting and self.chance.random() < 0.9:
                continue  # a report is not answered yet; sometimes the process gives up waiting
            process.is_reporting = True
            host, claim = process.host, process.membership.claim()
            view = View(host.log)
            report = GatewayClaim(
                process.name, claim.number, 1, host.copy, host.name, b"", claim.term, view.known_term, len(host.log),
                claim.standby_copy,
            )  # fmt: skip
            self.requests.append((process, report))

    def deliver(self) -> None:
        """Some requests reach the server, in any order."""
        if self.server_is_paused:
            return
        self.chance.shuffle(self.requests)
        kept = []
        for process, claim in self.requests:
            if process.host.is_cut_off or self.chance.random() < 0.2:
                if self.chance.random() < 0.9:
                    kept.append((process, claim))  # late
                continue
            outcome = self.terms.decide(claim, self.now_ns)
            self.check_silence(outcome)
            if outcome.record != self.terms.record and self.chance.random() < 0.05:
                self.durable = outcome.record if self.chance.random() < 0.5 else self.durable
                self.restart_server()  # it crashes as it records
                return
            self.durable = outcome.record
            self.terms.accept(claim, outcome, self.now_ns)
            if outcome.event:
                self.story.append(f"{self.now_ns // MS}: {claim.endpoint} {outcome.event}: {outcome.record}")
            self.answers.append((process, assignment_of(claim, outcome)))
        self.requests = kept

    def restart_server(self) -> None:
        """It forgets what is not durable, and the requests on their way to it are lost with their connections."""
        self.terms, self.requests = self.make_terms(2, self.durable, self.now_ns), []
        self.holder_heard_at_ran_ns = self.server_ran_ns

    def check_silence(self, outcome: Outcome) -> None:
        """A holder is silent only if it was for long while the server ran."""
        if outcome.event == "the holder was silent" and not self.is_stopping():
            silent_ns = self.server_ran_ns - self.holder_heard_at_ran_ns
            assert silent_ns >= SILENCE_NS_MAX, "the holder is blamed for a pause of the server"
        if outcome.is_holder:
            self.holder_heard_at_ran_ns = self.server_ran_ns

    def is_stopping(self) -> bool:
        return self.terms.holder is not None and self.terms.holder.is_stopping

    def answer(self) -> None:
        answers, self.answers = self.answers, []
        for process, assignment in answers:
            if process.host.is_paused:
                self.answers.append((process, assignment))
                continue
            is_heard = not process.host.is_cut_off and process.host.process is process
            if is_heard and assignment.number == process.membership.number:
                process.is_reporting = False
                self.take(process, assignment)

    def take(self, process: Process, assignment: Assignment) -> None:
        host, was = process.host, process.membership.state
        process.membership.on_assignment(assignment, host.copy, self.now_ns)
        if process.membership.state is GatewayState.HOLDER and was is not GatewayState.HOLDER:
            process.follows = None
            if not host.copy:
                host.new_copy()
            host.log.append(Record("term", Message(0, 0), process.membership.term))
            process.view, process.turn = View(host.log), Turn(len(host.log))
            process.turn.numbered = list(enumerate(process.view.numbered))  # what is not committed must not be sent
            process.membership.on_appended(len(host.log), self.now_ns)

    def copy(self) -> None:
        """A follower appends what its leader's log has next."""
        for process in self.processes():
            if process.membership.state not in (GatewayState.BEHIND, GatewayState.STANDBY):
                continue
            leader = self.leader_for(process)
            if process.follows is not leader:
                process.follows = leader
                if leader is not None and leader.host.log[: len(process.host.log)] != process.host.log:
                    process.host.copy = b""  # it diverges: set aside
            if leader is None:
                continue
            if not process.host.copy:
                process.host.new_copy()
            have = len(process.host.log)
            process.host.log += leader.host.log[have : have + self.chance.randrange(4)]

    def leader_for(self, process: Process) -> Process | None:
        holder = self.terms.holder
        for host in self.hosts:
            other = host.process
            is_holder = holder is not None and other is not None and other.name == holder.process
            if (
                is_holder
                and other is not process
                and other.membership.state is GatewayState.HOLDER  # another serves no log
                and not host.is_paused
                and not any(each.is_cut_from_peer for each in self.hosts)
            ):
                return other
        return None

    def acknowledge_copies(self) -> None:
        """Leaders hear what their followers have."""
        for process in self.processes():
            followers = [
                each for each in self.processes()
                if each.follows is process and not each.host.is_cut_from_peer and not process.host.is_cut_from_peer
            ]  # fmt: skip
            prefix = [each for each in followers if process.host.log[: len(each.host.log)] == each.host.log]
            process.positions = {each.host.copy: len(each.host.log) for each in prefix if each.host.copy}
            process.membership.on_positions(process.positions, self.now_ns)

    def serve(self) -> None:
        """A contributor calls a gateway that holds a term, or believes so; the gateway decides."""
        for process in self.processes():
            view = process.view
            if process.membership.state is not GatewayState.HOLDER or process.turn is not None or view is None:
                continue
            log, turn = process.host.log, Turn(0)
            for producer in range(PRODUCERS):
                number = self.next_numbers[producer]
                if self.chance.random() < 0.5:
                    message = Message(producer, number)
                    if view.next_numbers[producer] == number:
                        self.append(process, Record("accepted", message, process.membership.term))
                    if view.next_numbers[producer] <= number and self.is_former(process):
                        continue  # it refuses what another gateway has the beginning of
                    assert view.next_numbers[producer] > number, f"what came before {message} is lost"
                    turn.accepted.append(message)
            for message in list(view.pending):
                kind = self.chance.choice(["numbered", "cancelled", "", ""])
                first = next(each for each in view.pending if each.producer == message.producer)
                if kind == "numbered" and first == message:
                    turn.numbered.append((len(view.numbered), message))
                    self.append(process, Record(kind, message, process.membership.term))
                elif kind == "cancelled":
                    turn.cancelled.append(message)
                    self.append(process, Record(kind, message, process.membership.term))
            turn.end_index = len(log)
            process.turn = turn
            if self.is_former(process):
                self.answer()  # while the disk writes, the term may end
            process.membership.on_appended(len(log), self.now_ns)

    def is_former(self, process: Process) -> bool:
        """True if a later term was granted than the one that this gateway believes to hold."""
        return self.durable is not None and process.membership.term < self.durable.term

    def append(self, process: Process, record: Record) -> None:
        assert process.view is not None
        process.host.log.append(record)
        process.view.add(record)

    def commit(self) -> None:
        for process in self.processes():
            for packet in process.unsent:  # also of a gateway whose term is over, without its knowledge
                self.checker.on_sent(*packet)
            process.unsent = []
            turn = process.turn
            if turn is None or process.membership.committed_index < turn.end_index:
                continue
            process.turn = None
            process.unsent = turn.numbered
            for message in turn.accepted:
                self.checker.accepted.add(message)
                self.next_numbers[message.producer] = max(self.next_numbers[message.producer], message.number + 1)
            for message in turn.cancelled:
                self.checker.on_cancelled(message)

    def tick(self) -> None:
        for process in self.processes():
            membership, host = process.membership, process.host
            if LOOKS_MIN * (self.now_ns - host.ran_at_ns) > PATIENCE_NS:
                host.runs_since_ns = self.now_ns
            host.ran_at_ns = self.now_ns
            had_standby = membership._wanted != NO_COPY
            membership.on_timer(self.now_ns)
            if had_standby and membership._wanted == NO_COPY:
                ran_ns = self.now_ns - host.runs_since_ns
                assert ran_ns >= PATIENCE_NS, "a standby is given up for a pause of its holder"

    # ---- faults ----

    def fail(self) -> None:
        host = self.chance.choice(self.hosts)
        fault = self.chance.choice(["kill", "pause", "resume", "cut", "join", "cut peer", "join", "lose", "server"])
        self.story.append(f"{self.now_ns // MS}: {fault} {host.name}")
        if fault == "kill":
            host.process = None
        elif fault == "pause":
            host.is_paused = True
        elif fault == "resume":
            self.heal()
        elif fault == "cut":
            host.is_cut_off = True
        elif fault == "cut peer":
            host.is_cut_from_peer = True
        elif fault == "join":
            host.is_cut_off = host.is_cut_from_peer = False
        elif fault == "server":
            self.restart_server()
        elif self.durable is not None and self.durable.standby_copy:  # otherwise only one copy must exist
            other = next(each for each in self.hosts if each is not host)
            if other.copy in (self.durable.holder_copy, self.durable.standby_copy):
                host.process, host.copy, host.log = None, b"", []
                # A holder that is lost while it asks to go on alone is what an operator must decide about.
                self.requests = [each for each in self.requests if each[0].host is not host]


def assignment_of(claim: GatewayClaim, outcome: Outcome) -> Assignment:
    """The server's answer."""
    record = outcome.record or TermRecord(0, 0, b"")
    return Assignment(
        claim.number, record.term, outcome.is_holder, outcome.is_takeover, record.holder_copy, record.standby_copy,
        outcome.is_over, outcome.reason,
    )  # fmt: skip
