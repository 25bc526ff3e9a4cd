"""Faults in what an adapter that lies is believed: by the admin server, other adapters and clients."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tandemfeed.admin_server.feed.members.claims import Claims, Grounds, SessionVerdict
from tandemfeed.feedcore.lease.peers import Peers
from tandemfeed.feedcore.merge.belief import Belief
from tandemfeed.feedcore.replica.engine import AdapterEngine
from tandemfeed.feedcore.replica.sessions import Sessions
from tandemfeed.feedcore.vouched_epochs import VouchedEpochs
from tandemfeed.feedcore.wire.output_packet import OutputPacket
from tests.simulation import admin
from tests.simulation.mutants.mutant import Method, Mutant, always
from tests.simulation.proofs import ProofBook
from tests.simulation.scenarios import Scenario


def _believes_any_number(right: Method) -> Method:
    def judge(self: Claims, kind: str, adapter_id: int, claimed: int, *others: Any, **named: Any) -> Any:
        return (Grounds.MOST, claimed) if kind == "epoch" else right(self, kind, adapter_id, claimed, *others, **named)

    return judge


def _believes_half(right: Method) -> Method:
    def judge(
        self: Claims, kind: str, adapter_id: int, claimed: int, known: int, members: Collection[int], **named: Any
    ) -> Any:
        return right(self, kind, adapter_id, claimed, known, sorted(members)[:1], **named)

    return judge


def _follows_any_session(right: Method) -> Method:
    def on_adapter_session(self: Sessions, session: int, now_ns: int) -> Any:
        self.on_described(session)
        return right(self, session, now_ns)

    return on_adapter_session


def _believes_at_once(_: Method) -> Method:
    def believed(self: Belief, packet: OutputPacket, now_ns: int) -> OutputPacket:
        return packet

    return believed


def _believes_the_first(right: Method) -> Method:
    def is_vouched(self: Belief, packet: OutputPacket, now_ns: int) -> bool:
        self.on_described(packet.session, now_ns)
        return True

    return is_vouched


def _lies(what: str, owner: Any, method: str, change: Any, killer: str = "") -> Mutant:
    return Mutant(what, owner, method, change, scenario=Scenario.LIES, killer=killer)


LIES = (
    _lies("the server believes any epoch that an adapter names", Claims, "judge", _believes_any_number),
    _lies("the server believes what one adapter of several names", Claims, "judge", _believes_half),
    _lies("the server accepts impossible values in a report", admin, "impossible_in", always(None)),
    _lies("the server follows one adapter into a session", Claims, "judge_session", always(SessionVerdict.BELIEVED)),
    _lies("the server names no adapter whose reports it refuses", Claims, "refuse", always(False)),
    _lies("invented proofs of epochs are accepted", ProofBook, "is_genuine", always(True)),
    _lies("an adapter believes an epoch that was not granted", AdapterEngine, "_check_vouched", always(None)),
    _lies("any adapter may be the active of an epoch", VouchedEpochs, "may_be_active", always(True)),
    _lies(
        "an adapter believes states of a start that was not announced",
        Peers,
        "is_announced",
        always(True),
        killer="tests.feedcore.replica.test_lying_adapter:test_a_state_of_a_start_that_was_never_announced_does_not_outrank_those_of_the_next_one",
    ),
    _lies("an adapter follows another one into a session", Sessions, "on_adapter_session", _follows_any_session),
    _lies("a client believes every number", Belief, "believed", _believes_at_once),
    _lies("a client follows the first adapter into a session", Belief, "_is_vouched", _believes_the_first),
    _lies("a client takes any heartbeat for the owner's word", Belief, "_is_word", always(True)),
    _lies("a client believes any adapter that the stream has ended", Belief, "_has_ended", always(True)),
    _lies(
        "a client does not look who lives before it judges silence",
        Belief,
        "asks_who_lives",
        always(False),
        killer="tests.simulation.test_simulation:test_a_signed_stream_that_is_idle_does_not_end_because_a_backup_says_so",
    ),
)
