"""What the server believes of the numbers that one adapter names."""

from __future__ import annotations

import math

import pytest

from tandemfeed.admin_server.feed.members.claims import (
    KINDS_MAX,
    SESSION_GRACE_NS,
    Claims,
    Grounds,
    SessionVerdict,
    impossible_in,
)
from tandemfeed.feedcore.wire.position import SEQ_MAX
from tandemfeed.v1 import common_pb2

KNOWN = 64
HUGE = 2**32 - 1


@pytest.mark.parametrize("member_count", [2, 3, 4, 5])
def test_the_word_of_half_of_the_adapters_is_no_ground(member_count: int) -> None:
    claims, members = Claims(), range(1, member_count + 1)
    for adapter_id in range(1, member_count // 2 + 1):
        assert claims.judge("epoch", adapter_id, HUGE, KNOWN, members) == (Grounds.NONE, KNOWN)


@pytest.mark.parametrize("member_count", [1, 2, 3, 4, 5])
def test_the_word_of_more_than_half_counts_up_to_what_they_agree_on(member_count: int) -> None:
    claims, members = Claims(), range(1, member_count + 1)
    claims.judge("epoch", 1, HUGE if member_count > 1 else 1_000, KNOWN, members)
    for adapter_id in range(2, member_count // 2 + 2):
        claims.judge("epoch", adapter_id, 1_000, KNOWN, members)
    assert claims.judge("epoch", 1, HUGE if member_count > 1 else 1_000, KNOWN, members) == (Grounds.MOST, 1_000)


def test_a_proof_counts_alone() -> None:
    assert Claims().judge("epoch", 1, 1_000, KNOWN, (1, 2, 3), is_proved=True) == (Grounds.PROOF, 1_000)


def test_failed_adapters_and_withdrawn_claims_do_not_count() -> None:
    claims = Claims()
    claims.judge("epoch", 1, 1_000, KNOWN, (1, 2, 3))
    assert claims.judge("epoch", 2, 1_000, KNOWN, (2, 3)) == (Grounds.NONE, KNOWN)
    claims.withdraw("epoch", 1)
    assert claims.judge("epoch", 2, 1_000, KNOWN, (1, 2, 3)) == (Grounds.NONE, KNOWN)


def test_kinds_of_claims_do_not_support_each_other() -> None:
    claims = Claims()
    claims.judge("epoch", 1, 1_000, KNOWN, (1, 2))
    assert claims.judge("session", 2, 1_000, KNOWN, (1, 2)) == (Grounds.NONE, KNOWN)


def session_verdict(claims: Claims, adapter_id: int, *, source: int, members: int, now_ns: int = 0) -> SessionVerdict:
    return claims.judge_session(adapter_id, 5, 4, source, range(1, members + 1), now_ns)


def test_a_session_that_the_source_reports_is_believed_of_one_adapter() -> None:
    assert session_verdict(Claims(), 1, source=5, members=2) is SessionVerdict.BELIEVED
    assert Claims().judge_session(1, 4, 4, 5, (1, 2), 0) is SessionVerdict.KNOWN


@pytest.mark.parametrize(("source", "members"), [(4, 1), (4, 3), (0, 2)])
def test_a_session_that_one_adapter_names_is_refused_once_no_other_has_followed(source: int, members: int) -> None:
    claims = Claims()
    verdicts = [
        session_verdict(claims, 1, source=source, members=members, now_ns=now_ns)
        for now_ns in (7, 7 + SESSION_GRACE_NS, 8 + SESSION_GRACE_NS)
    ]
    assert verdicts == [SessionVerdict.AWAITED, SessionVerdict.AWAITED, SessionVerdict.REFUSED]


@pytest.mark.parametrize("source", [0, 4])
def test_a_session_that_most_attending_adapters_are_in_is_believed(source: int) -> None:
    claims = Claims()
    assert session_verdict(claims, 1, source=source, members=3) is SessionVerdict.AWAITED
    assert session_verdict(claims, 2, source=source, members=3) is SessionVerdict.BELIEVED


def test_the_only_adapter_of_a_venues_own_lines_is_believed_about_its_session() -> None:
    assert session_verdict(Claims(), 1, source=0, members=1) is SessionVerdict.BELIEVED


def test_refusals_are_counted_until_the_adapter_is_readmitted() -> None:
    claims = Claims()
    assert claims.refuse("epoch", 1, "was in epoch 7", 10)
    assert not claims.refuse("epoch", 1, "was in epoch 8", 20)
    (doubt,) = claims.doubts(1)
    assert (doubt.what, doubt.count, doubt.last_unix_ns) == ("was in epoch 8", 2, 20)
    assert not claims.doubts(2)
    claims.forget(1)
    assert not claims.doubts(1)
    assert claims.refuse("epoch", 1, "was in epoch 8", 30)


def test_what_is_remembered_of_an_adapter_is_limited() -> None:
    claims = Claims()
    for number in range(KINDS_MAX + 5):
        claims.refuse(f"kind {number}", 1, "x", 1)
    assert len(claims.doubts(1)) == KINDS_MAX


def state_of(score: float = 1.0, channel_ids: tuple[int, ...] = (1, 2), **numbers: int) -> common_pb2.FeedAdapterState:
    position = common_pb2.MessageStreamState(next_source_seqs={1: numbers.pop("source_seq", 1)}, **numbers)
    channels = [common_pb2.ChannelState(channel_id=each, position=position) for each in channel_ids]
    return common_pb2.FeedAdapterState(channels=channels, health=common_pb2.HealthState(score=score))


@pytest.mark.parametrize("score", [math.nan, math.inf, -0.1, 1.1])
def test_an_impossible_health_score_is_refused(score: float) -> None:
    assert "health score" in (impossible_in(state_of(score), (1, 2)) or "")


@pytest.mark.parametrize("name", ["next_input_seq", "next_message_seq", "source_seq"])
def test_an_impossible_sequence_number_is_refused(name: str) -> None:
    assert impossible_in(state_of(**{name: SEQ_MAX}), (1, 2)) is None
    assert str(SEQ_MAX + 1) in (impossible_in(state_of(**{name: SEQ_MAX + 1}), (1, 2)) or "")


@pytest.mark.parametrize(("channel_ids", "story"), [((1, 3), "channel 3, which"), ((1, 1), "channel 1 twice")])
def test_an_impossible_list_of_channels_is_refused(channel_ids: tuple[int, ...], story: str) -> None:
    assert story in (impossible_in(state_of(channel_ids=channel_ids), (1, 2)) or "")


@pytest.mark.parametrize("score", [0.0, 0.5, 1.0])
def test_an_ordinary_state_is_possible(score: float) -> None:
    assert impossible_in(state_of(score), (1, 2)) is None
