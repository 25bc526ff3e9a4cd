"""Finds where channels were at a time: asks every adapter, because their journals reach back differently far."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import ExitStack
from typing import NamedTuple

import grpc

from tandemfeed.client_lib.errors import HistoryUnavailable
from tandemfeed.client_lib.items import HistoryShortened
from tandemfeed.client_lib.login.grant import Grant
from tandemfeed.client_lib.login.session import Session
from tandemfeed.client_lib.stream.starts import FIRST_MESSAGE, OLDEST_NS
from tandemfeed.transport.calls.channels import status_of
from tandemfeed.v1 import replay_pb2, replay_pb2_grpc

log = logging.getLogger(__name__)
LOCATE_TIMEOUT_S = 5.0


class Located(NamedTuple):
    """Where an adapter has a channel at a time. Attributes: at_ns: 0: it has nothing so late."""

    message_seq: int
    at_ns: int


def locate(
    session: Session, grant: Grant, channel_ids: Iterable[int], at_ns: int
) -> tuple[dict[str, int], list[HistoryShortened]]:
    """The first message of each channel since a time, by topic, and where history is shorter than that.

    Raises:
        HistoryUnavailable: no adapter answered.
    """
    firsts: dict[str, int] = {}
    shortened: list[HistoryShortened] = []
    with ExitStack() as opened:
        stubs = [
            replay_pb2_grpc.ReplayStub(opened.enter_context(session.open_channel(each.rpc_endpoint, each.server_name)))
            for each in grant.adapters.values()
            if each.rpc_endpoint
        ]
        for channel_id in channel_ids:
            wanted, oldest = (_ask(stubs, channel_id, each, grant.session) for each in (at_ns, OLDEST_NS))
            if not wanted or not oldest:
                topic = grant.topics_by_channel[channel_id]
                raise HistoryUnavailable(f"no adapter said where {topic} was at that time; start live, or try again")
            first = choose(wanted)
            firsts[grant.topics_by_channel[channel_id]] = first.message_seq
            if first.message_seq > FIRST_MESSAGE and first.at_ns and first == choose(oldest):
                shortened.append(HistoryShortened(channel_id, *first))
    return firsts, shortened


def choose(answers: Iterable[Located]) -> Located:
    """Where to begin: the earliest message that any adapter has; if none has one so late, after the newest."""
    present = [each for each in answers if each.message_seq]
    found = [each for each in present if each.at_ns]
    return min(found) if found else max(present, default=Located(FIRST_MESSAGE, 0))


def _ask(stubs: list[replay_pb2_grpc.ReplayStub], channel_id: int, at_ns: int, session: int) -> list[Located]:
    request = replay_pb2.LocateRequest(channel_id=channel_id, at_unix_ns=at_ns, session=session)
    calls = [stub.Locate.future(request, timeout=LOCATE_TIMEOUT_S) for stub in stubs]
    answers = []
    for call in calls:
        try:
            reply = call.result()
        except grpc.RpcError as error:
            code, details = status_of(error)
            log.info("an adapter did not locate a time", extra={"code": code.name, "details": details})
            continue
        answers.append(Located(reply.message_seq, reply.at_unix_ns))
    return answers
