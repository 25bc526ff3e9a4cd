"""Each core step by step, and its table of moves."""

from __future__ import annotations

import random
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from tandemfeed.journal.format.control import Settings
from tandemfeed.journal.format.roll_cycle import DAILY
from tandemfeed.journal.replication import effects as do
from tandemfeed.journal.replication.follower.follower_core import FollowerCore
from tandemfeed.journal.replication.leader.leader_core import LeaderCore
from tandemfeed.journal.replication.limits import PIECE_SIZE_MAX, RUN_SIZE, Limits
from tandemfeed.journal.replication.states import (
    FOLLOWER_MOVES,
    PEER_MOVES,
    FollowerState,
    IllegalMove,
    PeerState,
    check_follower_move,
    check_move,
)
from tandemfeed.journal.replication.wire.messages import (
    NO_ID,
    Acknowledge,
    Heartbeat,
    Hello,
    Piece,
    Position,
    Probe,
    Probed,
    Reason,
    Refused,
    Segment,
    SegmentDigest,
    Segments,
    Welcome,
)

BITS = DAILY.sequence_bits
START = 5 << BITS
LEADER_ID, FOLLOWER_ID = b"L" * 16, b"F" * 16
SETTINGS = Settings("DAILY", 0, "UTC", 1 << 18, 0, "", "journal")
WELCOME = Welcome(1, LEADER_ID, "DAILY", 0, "UTC", 1 << 18, False, START)
LIMITS = Limits(window_size=1_000_000)
DOCS = Path(__file__).resolve().parents[3] / "docs" / "journal-replication.md"


def _segment(sequence: int, size: int = 10) -> Segment:
    return Segment(5, sequence, 1, 1, size, bytes(size))


def _leader(acks: int = 1, limits: Limits = LIMITS) -> LeaderCore:
    return LeaderCore(LEADER_ID, SETTINGS, start_index=START, acks=acks, limits=limits)


def _join(core: LeaderCore, key: bytes, follower_id: bytes = FOLLOWER_ID, now_ns: int = 0) -> list[do.LeaderEffect]:
    """A follower with an empty journal sends Hello and is accepted."""
    assert core.on_message(key, Hello(1, NO_ID), now_ns) == [do.LookUpOldest(key)]
    assert core.on_oldest(key, START, now_ns) == [do.SendTo(key, WELCOME)]
    effects = core.on_message(key, Position(1, follower_id, START, ()), now_ns)
    assert effects[-1] == do.CompareTail(key, START, ())
    return core.on_tail_compared(key, None, now_ns)


def _follower(durable: bool = False) -> tuple[FollowerCore, int]:
    """A core that follows from START on, and its session."""
    core = FollowerCore(random.Random(1).random, durable=durable)
    _, hello = core.on_timer(0)
    assert isinstance(hello, do.Send)
    session = hello.message.session
    welcome = Welcome(session, *[getattr(WELCOME, name) for name in WELCOME.__slots__[1:]])
    assert core.on_message(welcome, 0) == [do.OpenJournal(welcome)]
    assert core.on_opened(FOLLOWER_ID, START, (), 0) == [do.Send(Position(session, FOLLOWER_ID, START, ()))]
    assert core.on_message(Heartbeat(session, START), 0) == []
    assert core.state is FollowerState.FOLLOWING
    core.on_drained(0)
    return core, session


def test_an_accepted_follower_gets_a_heartbeat_before_segments() -> None:
    effects = _join(_leader(), b"one")
    assert effects == [do.SendTo(b"one", Heartbeat(1, START)), do.ReadFrom(b"one", START, RUN_SIZE)]


def test_bytes_in_flight_exceed_the_window_by_one_run_or_piece_at_most() -> None:
    core = _leader()
    effects = _join(core, b"one")
    sequence, sent = 0, 0
    while any(isinstance(each, do.ReadFrom) for each in effects):
        size = 2_500_000 if sequence % 3 == 2 else 200_000
        effects = core.on_read(b"one", [_segment(sequence, size)], 0)
        sequence += 1
        sent += sum(len(each.message.data) for each in effects if _is_piece(each))
        sent += sum(len(s.body) for each in effects if _is_run(each) for s in each.message.segments)  # type: ignore[union-attr]
    assert LIMITS.window_size <= sent <= LIMITS.window_size + PIECE_SIZE_MAX
    effects = core.on_message(b"one", Acknowledge(1, START + 2, sent), 0)
    assert any(_is_piece(each) for each in effects)  # the window has room again


def _is_piece(effect: Any) -> bool:
    return isinstance(effect, do.SendTo) and isinstance(effect.message, Piece)


def _is_run(effect: Any) -> bool:
    return isinstance(effect, do.SendTo) and isinstance(effect.message, Segments)


def test_the_replicated_index_needs_the_required_acknowledgements_and_only_grows() -> None:
    core = _leader(acks=2)
    for key in (b"one", b"two"):
        _join(core, key, follower_id=key.ljust(16))
        core.on_read(key, [_segment(number) for number in range(4)], 0)
    assert not _shown(core.on_message(b"one", Acknowledge(1, START + 4, 40), 0))
    assert _shown(core.on_message(b"two", Acknowledge(1, START + 1, 10), 0)) == [do.ShowUntil(START + 1)]
    assert _shown(core.on_message(b"two", Acknowledge(1, START + 3, 30), 0)) == [do.ShowUntil(START + 3)]
    _join(core, b"two again", follower_id=b"two".ljust(16))  # it lost its records
    assert core.replicated_index == START + 3


def _shown(effects: list[do.LeaderEffect]) -> list[do.LeaderEffect]:
    return [each for each in effects if isinstance(each, do.ShowUntil)]


def test_one_follower_that_connects_twice_counts_once() -> None:
    core = _leader(acks=2)
    _join(core, b"one")
    core.on_read(b"one", [_segment(0)], 0)
    core.on_message(b"one", Acknowledge(1, START + 1, 10), 0)
    _join(core, b"again")
    assert list(core.peers) == [b"again"]
    core.on_read(b"again", [_segment(0)], 0)
    assert not _shown(core.on_message(b"again", Acknowledge(1, START + 1, 10), 0))


@pytest.mark.parametrize("claim", [Acknowledge(1, START + 2, 10), Acknowledge(1, START + 1, 11)])
def test_a_follower_that_acknowledges_records_it_was_not_sent_is_refused_and_not_counted(claim: Acknowledge) -> None:
    core = _leader()
    _join(core, b"one")
    core.on_read(b"one", [_segment(0)], 0)
    refusal, forget = core.on_message(b"one", claim, 0)
    assert isinstance(refusal, do.SendTo)
    assert isinstance(refusal.message, Refused)
    assert refusal.message.reason is Reason.VIOLATION
    assert forget == do.Forget(b"one")
    assert (core.replicated_index, core.violation_count) == (START, 1)


def test_an_unexpected_message_is_refused_and_an_unknown_session_must_send_hello() -> None:
    core = _leader()
    core.on_message(b"one", Hello(1, NO_ID), 0)
    assert core.on_message(b"one", Acknowledge(2, START, 0), 0) == []  # of another session
    refusal, _ = core.on_message(b"one", Acknowledge(1, START, 0), 0)
    assert isinstance(refusal, do.SendTo)
    assert isinstance(refusal.message, Refused)
    (refusal,) = core.on_message(b"one", Acknowledge(1, START, 0), 0)
    assert isinstance(refusal, do.SendTo)
    assert isinstance(refusal.message, Refused)
    assert refusal.message.reason is Reason.UNKNOWN_SESSION


def test_a_silent_follower_is_dropped_and_an_idle_one_gets_heartbeats() -> None:
    core = _leader()
    assert core.next_deadline_ns() is None
    _join(core, b"one")
    core.on_read(b"one", [], 0)
    assert core.next_deadline_ns() == LIMITS.heartbeat_interval_ns
    beat_ns = LIMITS.heartbeat_interval_ns
    assert core.on_timer(beat_ns) == [do.SendTo(b"one", Heartbeat(1, START))]
    for looks in range(2, LIMITS.silence_ns_max // beat_ns):
        assert core.on_timer(looks * beat_ns) == [do.SendTo(b"one", Heartbeat(1, START))]
    assert core.on_timer(LIMITS.silence_ns_max) == [do.Forget(b"one")]
    assert core.peers == {}


@pytest.mark.parametrize("pause_beats", [2, 5, 6, 3_600])
def test_a_leader_that_was_paused_does_not_take_its_followers_for_silent(pause_beats: int) -> None:
    """What they sent meanwhile may wait to be read."""
    core, beat_ns = _leader(), LIMITS.heartbeat_interval_ns
    _join(core, b"one")
    core.on_read(b"one", [], 0)
    resumed_ns = beat_ns * (1 + pause_beats)
    assert core.on_timer(beat_ns) == core.on_timer(resumed_ns) == [do.SendTo(b"one", Heartbeat(1, START))]
    now_ns, effects = resumed_ns, list[do.LeaderEffect]()
    while do.Forget(b"one") not in effects:  # silence from now on is one
        deadline_ns = core.next_deadline_ns()
        assert deadline_ns is not None
        assert deadline_ns > now_ns
        now_ns = deadline_ns
        effects += core.on_timer(now_ns)
    assert LIMITS.silence_ns_max - 3 * beat_ns <= now_ns - resumed_ns <= LIMITS.silence_ns_max


def test_a_leader_refuses_followers_beyond_its_limit_and_those_of_another_leader() -> None:
    core = _leader(limits=Limits(followers_max=1))
    _join(core, b"one")
    for hello, reason in ((Hello(2, NO_ID), Reason.TOO_MANY), (Hello(2, b"X" * 16), Reason.FOREIGN)):
        (refusal,) = core.on_message(b"two", hello, 0)
        assert isinstance(refusal, do.SendTo)
        assert isinstance(refusal.message, Refused)
        assert refusal.message.reason is reason


def test_a_failed_read_for_one_follower_does_not_affect_the_others() -> None:
    core = _leader()
    _join(core, b"one", follower_id=b"1" * 16)
    _join(core, b"two", follower_id=b"2" * 16)
    refusal, _ = core.on_read_failed(b"one", "a block does not decompress")
    assert isinstance(refusal, do.SendTo)
    assert isinstance(refusal.message, Refused)
    assert refusal.message.reason is Reason.FAILED
    assert list(core.peers) == [b"two"]


def test_a_durable_follower_syncs_once_before_it_acknowledges_all_that_arrived() -> None:
    core, session = _follower(durable=True)
    for number in range(3):
        effects = core.on_message(Segments(session, START + number, (_segment(number),)), 0)
        assert effects == [do.Append(START + number, _segment(number))]
    assert core.on_drained(0) == [do.Sync(), do.Send(Acknowledge(session, START + 3, 30))]
    assert core.on_drained(0) == []


def test_pieces_become_a_segment_only_when_all_have_arrived() -> None:
    core, session = _follower()
    whole = _segment(0, 2_000_000)
    head = Segment(5, 0, 1, 1, 2_000_000, b"")
    assert core.on_message(Piece(session, START, head, 2_000_000, 0, bytes(1_000_000)), 0) == []
    assert core.on_drained(0) == [do.Send(Acknowledge(session, START, 1_000_000))]
    piece = Piece(session, START, head, 2_000_000, 1_000_000, bytes(1_000_000))
    assert core.on_message(piece, 0) == [do.Append(START, whole)]
    assert core.on_drained(0) == [do.Send(Acknowledge(session, START + 1, 2_000_000))]


@pytest.mark.parametrize(
    ("from_index", "segment"),
    [
        (START + 1, _segment(1)),  # a piece is missing
        (START, Segment(4, 7, 1, 1, 1, b"x")),  # it precedes the position
        (START, Segment(5, 1 << BITS, 1, 1, 1, b"x")),  # its count does not fit an index
        (START, Segment(DAILY.cycle_max + 1, 0, 1, 1, 1, b"x")),
    ],
)
def test_a_segment_in_the_wrong_place_is_never_appended(from_index: int, segment: Segment) -> None:
    core, session = _follower()
    assert core.on_message(Segments(session, from_index, (segment,)), 0) == [do.Disconnect()]
    assert core.state is FollowerState.WAITING
    assert core.reason


def test_pauses_between_attempts_grow_up_to_a_limit_and_are_partly_random() -> None:
    limits = Limits()
    pauses = []
    core, now_ns = FollowerCore(random.Random(3).random, limits=limits), 0
    for _ in range(12):
        core.on_timer(now_ns)
        core.on_disconnected("refused", now_ns)
        deadline_ns = core.next_deadline_ns()
        assert deadline_ns is not None
        pauses.append(deadline_ns - now_ns)
        now_ns = deadline_ns
    assert limits.backoff_ns_min // 2 <= pauses[0] <= limits.backoff_ns_min
    assert all(limits.backoff_ns_max // 2 <= pause <= limits.backoff_ns_max for pause in pauses[6:])
    assert len(set(pauses)) == len(pauses)


def test_a_follower_disconnects_from_a_silent_leader_and_drops_incomplete_segments() -> None:
    core, session = _follower()
    core.on_message(Piece(session, START, Segment(5, 0, 1, 1, 9, b""), 9, 0, b"half"), 0)
    beat_ns = Limits().heartbeat_interval_ns
    for looks in range(1, Limits().silence_ns_max // beat_ns):
        assert do.Disconnect() not in core.on_timer(looks * beat_ns)
    assert core.on_timer(Limits().silence_ns_max) == [do.Disconnect()]
    assert core.on_message(Heartbeat(session, START), Limits().silence_ns_max) == []  # too late


@pytest.mark.parametrize("pause_beats", [2, 5, 6, 3_600])
def test_a_follower_that_was_paused_does_not_take_its_leader_for_silent(pause_beats: int) -> None:
    core, session = _follower()
    now_ns = pause_beats * Limits().heartbeat_interval_ns
    assert do.Disconnect() not in core.on_timer(now_ns)
    assert core.on_message(Heartbeat(session, START), now_ns) == []
    disconnected = False
    while not disconnected:  # silence from now on is one
        deadline_ns = core.next_deadline_ns()
        assert deadline_ns is not None
        disconnected = do.Disconnect() in core.on_timer(deadline_ns)
    assert deadline_ns - now_ns == Limits().silence_ns_max


def test_records_that_could_not_be_appended_are_requested_again_on_a_new_connection() -> None:
    core, session = _follower()
    core.on_message(Segments(session, START, (_segment(0),)), 0)
    assert core.on_append_failed("the disk is full", 0) == [do.Disconnect()]
    deadline_ns = core.next_deadline_ns()
    assert deadline_ns is not None
    connect, hello = core.on_timer(deadline_ns)
    assert connect == do.Connect()
    assert isinstance(hello, do.Send)
    assert hello.message == Hello(hello.message.session, LEADER_ID)
    assert hello.message.session != session


def test_bisection_finds_the_first_segment_that_differs_with_few_probes() -> None:
    common, count = 700, 1_000
    core = _leader()
    core.on_message(b"one", Hello(1, NO_ID), 0)
    core.on_oldest(b"one", START, 0)
    core.on_message(b"one", Position(1, FOLLOWER_ID, START + count, ()), 0)
    (effect,) = core.on_tail_compared(b"one", START + count - 1, 0)
    questions = 0
    while isinstance(effect, do.SendTo) and isinstance(effect.message, Probe):
        questions += 1
        place = max(effect.message.index, START)
        found = SegmentDigest(place, place + 1, bytes(16)) if place < START + count else None
        effects = core.on_message(b"one", Probed(1, effect.message.index, found), 0)
        if isinstance(effects[0], do.CompareOne):
            effects = core.on_one_compared(b"one", effects[0].found, effects[0].found.first_index < START + common)
        effect = effects[0]
    assert isinstance(effect, do.SendTo)
    assert isinstance(effect.message, Refused)
    assert (effect.message.reason, effect.message.index) == (Reason.DIVERGED, START + common)
    assert questions <= 64


# -- tables ------------------------------------------------------------------------------------------------------------


def diagram(table: Mapping[Any, frozenset[Any]], first: Enum) -> str:
    """A table of moves as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {first.name}"]
    lines += [
        f"    {was.name} --> {now.name}" for was in table for now in sorted(table[was], key=lambda state: state.name)
    ]
    return "\n".join(lines)


@pytest.mark.parametrize(("table", "first"), [(PEER_MOVES, PeerState.GREETED), (FOLLOWER_MOVES, FollowerState.WAITING)])
def test_every_state_is_in_its_table_is_reachable_and_is_in_the_manual(
    table: Mapping[Any, frozenset[Any]], first: Any
) -> None:
    assert set(table) == set(type(first))
    reached = {first}
    while more := {now for was in reached for now in table[was]} - reached:
        reached |= more
    assert reached == set(table)
    assert diagram(table, first) in DOCS.read_text()


def test_an_illegal_move_raises_with_the_moves_before_it() -> None:
    with pytest.raises(IllegalMove, match="gone -> sending: how it came"):
        check_move(PEER_MOVES, PeerState.GONE, PeerState.SENDING, "how it came")
    with pytest.raises(IllegalMove, match="diverged -> following"):
        check_follower_move(FollowerState.DIVERGED, FollowerState.FOLLOWING, "")


@pytest.mark.parametrize(
    "wrong",
    [
        {"silence_ns_max": 2, "heartbeat_interval_ns": 1},
        {"backoff_ns_min": 2, "backoff_ns_max": 1},
        {"window_size": 0},
        {"followers_max": 0},
    ],
)
def test_limits_that_contradict_each_other_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"must|has"):
        Limits(**wrong)
