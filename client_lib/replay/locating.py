"""Finds where channels were at a time, and the sessions since then: asks every adapter, because their journals reach
back differently far."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import NamedTuple

import grpc

from tandemfeed.client_lib.errors import HistoryUnavailable
from tandemfeed.client_lib.items import HistoryShortened
from tandemfeed.client_lib.login.grant import Grant
from tandemfeed.client_lib.login.session import Session
from tandemfeed.client_lib.patient_wait import PatientWait
from tandemfeed.client_lib.stream.starts import FIRST_MESSAGE, OLDEST_NS
from tandemfeed.feedcore.merge.history.place import Place, ResumePoint
from tandemfeed.feedcore.merge.sessions import FormerSession
from tandemfeed.feedcore.wire.lineage import decode_lineage
from tandemfeed.feedcore.wire.output_packet import (
    END_OF_STREAM_BIT,
    HEARTBEAT_BIT,
    OutputPacket,
    decode_output_packet,
)
from tandemfeed.feedcore.wire.position import SEQ_MAX
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal
from tandemfeed.transport.calls.channels import status_of
from tandemfeed.v1 import replay_pb2, replay_pb2_grpc

log = logging.getLogger(__name__)
LOCATE_TIMEOUT_S = 5.0
CALL_TIMEOUT_S = 60.0  # by gRPC's clock, which does not stop while this process is paused
assert CALL_TIMEOUT_S > LOCATE_TIMEOUT_S


class Wanted(NamedTuple):
    """Where one channel is to begin.

    Attributes:
        session: the first session to look in; 0: the oldest that an adapter has.
        at_ns: with what the source sent since then; 0: with the oldest.
        message_seq: with this message of `session` instead; 0: at the time.
        only_session: not in a later one.
        point: where to continue in `session`, which is known already; only the sessions since then are to be found.
    """

    session: int
    at_ns: int = OLDEST_NS
    message_seq: int = 0
    only_session: bool = False
    point: ResumePoint | None = None


class Beginning(NamedTuple):
    """Where one channel begins: with the former sessions, else with this message of this session."""

    session: int
    message_seq: int
    former: tuple[FormerSession, ...] = ()


class Located(NamedTuple):
    """Where an adapter has a channel in a session.

    Attributes:
        at_ns: when the source sent what begins there; 0: nothing does, it is the end of what the adapter has.
        is_oldest: the adapter has nothing before it.
        heartbeat: its last one of the session.
    """

    session: int
    place: Place
    at_ns: int
    is_oldest: bool
    heartbeat: OutputPacket


def locate(
    session: Session, grant: Grant, wanted: Mapping[int, Wanted]
) -> tuple[dict[int, Beginning], list[HistoryShortened]]:
    """Where channels begin, and where history is shorter than that. Args: wanted: by channel.

    Raises:
        HistoryUnavailable: no adapter answered.
    """
    beginnings: dict[int, Beginning] = {}
    shortened: list[HistoryShortened] = []
    with ExitStack() as opened:
        stubs = [
            replay_pb2_grpc.ReplayStub(opened.enter_context(session.open_channel(each.rpc_endpoint, each.server_name)))
            for each in grant.adapters.values()
            if each.rpc_endpoint and wanted
        ]
        for channel_id, start in wanted.items():
            answers = _ask(stubs, grant.feed_id, channel_id, start)
            if answers is None:
                topic = grant.topics_by_channel[channel_id]
                raise HistoryUnavailable(f"no adapter said where {topic} was at that time; start live, or try again")
            chosen = choose(answers, start)
            shortened += [
                HistoryShortened(channel_id, each.place.message_seq, each.at_ns, each.session)
                for each in chosen
                if is_shortened(each, start, is_first=each is chosen[0])
                and (each.session < grant.session or each is chosen[0])  # else a gap says so
            ]
            beginnings[channel_id] = beginning(chosen, answers, start, grant.session)
    return beginnings, shortened


def choose(answers: Iterable[Located], wanted: Wanted) -> list[Located]:
    """Where to begin in each session: where that adapter begins that has most of it. If none has anything so late, at
    the end of the newest session."""
    by_session: dict[int, list[Located]] = {}
    for each in answers:
        by_session.setdefault(each.session, []).append(each)
    begins = [session for session, found in by_session.items() if not wanted.at_ns or any(each.at_ns for each in found)]
    first = min(begins) if begins else max(by_session, default=0)
    return [_furthest_back(found) for session, found in sorted(by_session.items()) if session >= first]


def _furthest_back(answers: list[Located]) -> Located:
    found = [each for each in answers if each.at_ns]
    return min(found, key=_place_of) if found else max(answers, key=_place_of)


def _place_of(located: Located) -> Place:
    return located.place


def is_shortened(located: Located, wanted: Wanted, *, is_first: bool) -> bool:
    """Whether something is missing before this place. Args: is_first: of all sessions."""
    if located.session == wanted.session and wanted.point is not None:
        return False  # the place is known; what is missing after it is a gap
    if wanted.message_seq and is_first:
        return (located.session, located.place.message_seq) > (wanted.session, wanted.message_seq)
    return located.is_oldest and located.at_ns > 0 and located.place.message_seq > FIRST_MESSAGE


def beginning(chosen: list[Located], answers: Iterable[Located], wanted: Wanted, present: int) -> Beginning:
    """Where a channel begins.

    Args:
        chosen: the place in each session.
        answers: whose heartbeats tell where former sessions end.
        present: the feed's present session.
    """
    points = {
        each.session: ResumePoint(each.place, decode_lineage(each.heartbeat.payload), {})
        for each in chosen
        if each.session < present
    }
    if wanted.point is not None:
        points[wanted.session] = wanted.point
    if not points:
        session, message_seq = (chosen[0].session, chosen[0].place.message_seq) if chosen else (present, FIRST_MESSAGE)
        return Beginning(session, message_seq)
    former = [
        FormerSession(session, point, last_heartbeats(each for each in answers if each.session == session))
        for session, point in sorted(points.items())
    ]
    return Beginning(present, FIRST_MESSAGE, tuple(former))


def last_heartbeats(answers: Iterable[Located]) -> tuple[OutputPacket, ...]:
    """Those of one session, the newest epoch first, and final ones before others."""
    heartbeats = [each.heartbeat for each in answers]
    return tuple(sorted(heartbeats, key=lambda each: (each.epoch, each.flags & END_OF_STREAM_BIT), reverse=True))


def _ask(
    stubs: list[replay_pb2_grpc.ReplayStub], feed_id: int, channel_id: int, wanted: Wanted
) -> list[Located] | None:
    """What all adapters have; None: none answered."""
    request = replay_pb2.LocateRequest(
        channel_id=channel_id,
        session=wanted.session,
        at_unix_ns=wanted.at_ns,
        message_seq=wanted.message_seq,
        any_session=not wanted.only_session,
    )
    answers: list[Located] | None = None
    with PatientWait(LOCATE_TIMEOUT_S) as wait:
        calls = [stub.Locate.future(request, timeout=CALL_TIMEOUT_S) for stub in stubs]
        for call in calls:
            try:
                found = [_located(each, feed_id, channel_id) for each in wait.result(call).sessions]
            except grpc.FutureTimeoutError:
                call.cancel()
                log.info("an adapter did not locate a time", extra={"details": f"no answer in {LOCATE_TIMEOUT_S:g} s"})
            except grpc.RpcError as error:
                code, details = status_of(error)
                log.info("an adapter did not locate a time", extra={"code": code.name, "details": details})
            except PacketRefused as refused:
                log.warning("cannot use where an adapter located a time", extra={"why": str(refused)})
            else:
                answers = [*(answers or ()), *found]
    return answers


def _located(each: replay_pb2.LocatedSession, feed_id: int, channel_id: int) -> Located:
    """Raises: PacketRefused: it contradicts itself."""
    place = Place(each.position.next_input_seq, each.position.next_message_seq)
    heartbeat = decode_output_packet(each.heartbeat)
    decode_lineage(heartbeat.payload)
    of_heartbeat = heartbeat.feed_id, heartbeat.channel_id, heartbeat.session, heartbeat.flags & HEARTBEAT_BIT
    is_possible = all(0 < number <= SEQ_MAX for number in place)
    if of_heartbeat != (feed_id, channel_id, each.session, HEARTBEAT_BIT) or not is_possible:
        raise PacketRefused(Refusal.FORGED, f"{heartbeat[:10]} does not belong to {place} of session {each.session}")
    return Located(each.session, place, each.at_unix_ns, each.is_oldest, heartbeat)
