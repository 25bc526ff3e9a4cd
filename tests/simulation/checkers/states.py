"""Checks invariant 7 (equal positions have equal conversion states) and invariant 9 (the cluster converges)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tandemfeed.feedcore.replica.config import SessionState
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tests.simulation.checkers.content import Truth, Violation
from tests.simulation.plan import MS, Plan
from tests.simulation.source import SessionMessages
from tests.simulation.toy_feed import FIRST_SESSION, SYMBOLS, state_after

if TYPE_CHECKING:
    from tests.simulation.adapter import AdapterActor
    from tests.simulation.client import ClientActor

IN_STEP = (ReplicaState.ACTIVE, ReplicaState.SYNCHRONIZED)


class StateChecker:
    """Compares the adapters' conversion states with each other and, if nothing was lost, with the expected state."""

    def __init__(
        self,
        plan: Plan,
        adapters: Sequence[AdapterActor],
        messages: SessionMessages,
        truths: dict[int, Truth],
    ) -> None:
        self._plan, self._adapters, self._messages, self._truths = plan, adapters, messages, truths
        self._before = _states_before(plan, messages)

    def compare(self, *, is_end: bool = False) -> None:
        """Compare all states now. A corrupted state may differ during the run, but not at the end."""
        if any(truth.corrupted for truth in self._truths.values()) and not is_end:
            return
        for channel, streams in enumerate(self._plan.channels, 1):
            known: dict[tuple[int, int, int], tuple[str, bytes]] = {}
            for adapter in self._adapters:
                if not adapter.is_alive or adapter.engine.replicas[channel].state not in IN_STEP:
                    continue
                line = adapter.engine.replicas[channel].line
                ends = tuple(line.next_source_seqs[stream] for stream in streams)
                state = self._state(adapter, channel)
                session = adapter.engine.session
                self._compare_one((adapter.name, session), channel, streams, ends, state)
                # An isolated active that lost its lease may differ for a while, because only it knows its decisions.
                other, first = known.setdefault((session, line.epoch, line.next_input_seq), (adapter.name, state))
                if first != state:
                    raise Violation("7", f"{other} and {adapter.name} differ in channel {channel} at {ends}")

    def _state(self, adapter: AdapterActor, channel: int) -> bytes:
        """A conversion state without the symbols that were corrupted after the last common position of all digests."""
        converter, corrupted = adapter.converters[channel], self._truths[adapter.engine.session].corrupted
        begun = [each for each in self._adapters if each.life]
        digests = [each.engine.replicas[channel].line.digest for each in begun]
        first = digests[0]
        is_comparable = all((digest.epoch, digest.input_seq) == (first.epoch, first.input_seq) for digest in digests)
        hidden = [
            symbol for symbol, places in corrupted.items() if not is_comparable or first.input_seq <= places[channel]
        ]
        kept = [symbol for symbol in range(SYMBOLS) if symbol not in hidden]
        return converter.snapshot_buckets(kept) if hidden else converter.snapshot()

    def _compare_one(
        self, who: tuple[str, int], channel: int, streams: tuple[int, ...], ends: tuple[int, ...], state: bytes
    ) -> None:
        name, session = who
        truth, messages = self._truths[session], self._messages[session]
        if truth.has_losses or truth.corrupted:
            return
        converted = {stream: messages[stream][: end - 1] for stream, end in zip(streams, ends, strict=True)}
        before, table = self._before.get((session, channel), b""), self._plan.tables[channel - 1]
        if state != state_after(converted, set(), before, table):
            raise Violation("7", f"{name} has a wrong state in channel {channel} at its position {ends}")


def _states_before(plan: Plan, messages: SessionMessages) -> dict[tuple[int, int], bytes]:
    """The state that each session starts with, by session and channel, if it is carried over from the previous one."""
    states: dict[tuple[int, int], bytes] = {}
    if plan.session_state is not SessionState.CARRY:
        return states
    for session in list(messages)[1:]:
        for channel, (streams, table) in enumerate(zip(plan.channels, plan.tables, strict=True), 1):
            rows = {stream: messages[session - 1][stream] for stream in streams}
            states[session, channel] = state_after(rows, set(), states.get((session - 1, channel), b""), table)
    return states


class ConvergenceChecker:
    """Checks that after the storm every client and adapter has everything, and that no adapter abstains."""

    def __init__(self, plan: Plan, adapters: Sequence[AdapterActor], clients: Sequence[ClientActor]) -> None:
        self._adapters, self._clients = adapters, clients
        self._ends = dict.fromkeys(plan.streams, plan.message_counts[-1] + 1)
        self._session = FIRST_SESSION + len(plan.new_sessions)

    def is_done(self) -> bool:
        """True if everything has converged."""
        return all(client.has_ended for client in self._clients) and all(map(self._is_settled, self._adapters))

    def at_end(self, calm_ns: int) -> None:
        """Check that everything has converged."""
        if self.is_done():
            return
        adapters = {
            adapter.name: [
                (
                    adapter.engine.session,
                    replica.state.value,
                    replica.line.next_input_seq,
                    *replica.line.next_source_seqs.items(),
                )
                for replica in adapter.engine.replicas.values()
            ]
            for adapter in self._adapters
        }
        clients = {
            client.name: {
                channel: (channel in client.ended, m.session, m.present.next_input_seq)
                for channel, m in client.mergers.items()
            }
            for client in self._clients
        }
        raise Violation("9", f"not converged after {calm_ns // MS} ms of calm: {adapters}, {clients}")

    def _is_settled(self, adapter: AdapterActor) -> bool:
        if not adapter.is_alive or adapter.abstains or adapter.engine.session != self._session:
            return False
        for replica in adapter.engine.replicas.values():
            if replica.state is ReplicaState.FAILED:
                continue
            if replica.state not in IN_STEP:
                return False
            if any(end != self._ends[stream] for stream, end in replica.line.next_source_seqs.items()):
                return False
        return True
