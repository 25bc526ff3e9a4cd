"""Asks the adapters for the last message of each type and key, with which a subscription that joins late begins.

All adapters are asked at once; the table that reaches furthest is read. Where no adapter has one, the caller makes the
snapshot from the session's history instead.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import grpc

from tandemfeed.client_lib.login.grant import Grant
from tandemfeed.client_lib.login.session import Session
from tandemfeed.client_lib.patient_wait import PatientWait
from tandemfeed.feedcore.merge.history.place import Place, ResumePoint
from tandemfeed.feedcore.wire.lineage import checked_lineage
from tandemfeed.feedcore.wire.output_packet import RETRANSMISSION_BIT, OutputPacket, decode_output_packet
from tandemfeed.feedcore.wire.position import SEQ_MAX
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal
from tandemfeed.runtime.threads import start_thread
from tandemfeed.transport.calls.channels import status_of
from tandemfeed.v1 import replay_pb2, replay_pb2_grpc

log = logging.getLogger(__name__)
ANSWER_WITHIN_S = 10.0  # an adapter that has just started reads its journal first
OTHERS_WITHIN_S = 0.15  # after the first answer
READ_WITHIN_S = 60.0


class LastValues(NamedTuple):
    """The last messages of a channel before a place, and that place, where its stream continues.

    Attributes:
        packets: of one message each, in stream order.
    """

    packets: list[OutputPacket]
    point: ResumePoint

    def end(self) -> OutputPacket:
        """An empty packet at that place. There is at least one packet."""
        input_seq, message_seq = self.point.place
        at_place = {"epoch": self.point.lineage.epoch, "first_input_seq": input_seq, "first_message_seq": message_seq}
        return self.packets[-1]._replace(**at_place, message_count=0, runs=(), payload=b"")


class _Answer(NamedTuple):
    adapter_id: int
    chunks: Any
    first: replay_pb2.LastValuesChunk  # with the position


_Answers: TypeAlias = "queue.SimpleQueue[_Answer | BaseException | None]"  # an exception ended the thread


def last_values(session: Session, grant: Grant, channel_ids: Iterable[int], key: str) -> dict[int, LastValues]:
    """By channel; a channel is missing if no adapter has its last values."""
    found = {}
    with ExitStack() as opened:
        stubs = {
            each.adapter_id: replay_pb2_grpc.ReplayStub(
                opened.enter_context(session.open_channel(each.rpc_endpoint, each.server_name))
            )
            for each in grant.adapters.values()
            if each.rpc_endpoint
        }
        for channel_id in channel_ids:
            request = replay_pb2.LastValuesRequest(channel_id=channel_id, key=key, session=grant.session)
            values = _ask_all(stubs, request, grant.feed_id)
            if values is not None and values.packets:
                found[channel_id] = values
    return found


def _ask_all(
    stubs: Mapping[int, replay_pb2_grpc.ReplayStub], request: replay_pb2.LastValuesRequest, feed_id: int
) -> LastValues | None:
    answers: _Answers = queue.SimpleQueue()
    calls = {adapter_id: stub.LastValues(request, timeout=READ_WITHIN_S) for adapter_id, stub in stubs.items()}
    for adapter_id, call in calls.items():
        await_position = partial(_await_position, adapter_id, call, answers)
        start_thread(await_position, "tandemfeed-last-values", lambda _, failure: answers.put(failure))
    try:
        usable = _usable(answers, len(calls))
        for answer in sorted(usable, key=lambda each: each.first.position.next_input_seq, reverse=True):
            try:
                return _read(answer, request, feed_id)
            except (grpc.RpcError, PacketRefused) as failed:
                log.warning("cannot use an adapter's last values", extra={"why": str(failed)})
        return None
    finally:
        for call in calls.values():
            call.cancel()


def _await_position(adapter_id: int, call: Any, answers: _Answers) -> None:
    first = None
    try:
        first = next((each for each in call if each.HasField("position")), None)
    except grpc.RpcError as error:
        code, details = status_of(error)
        log.info("an adapter has no last values", extra={"code": code.name, "details": details})
    answers.put(None if first is None else _Answer(adapter_id, call, first))


def _usable(answers: _Answers, count: int) -> list[_Answer]:
    """The answers that come soon enough. Raises what ended a thread."""
    usable: list[_Answer] = []
    with PatientWait(ANSWER_WITHIN_S) as wait:
        for _ in range(count):
            try:
                answer = wait.take(answers)
            except queue.Empty:
                break
            if isinstance(answer, BaseException):
                raise answer
            if answer is not None:
                usable.append(answer)
                wait.limit(OTHERS_WITHIN_S)
    return usable


def _read(answer: _Answer, request: replay_pb2.LastValuesRequest, feed_id: int) -> LastValues:
    """The whole answer.

    Raises:
        grpc.RpcError.
        PacketRefused: it contradicts itself.
    """
    point = _point(answer.first)
    packets = [decode_output_packet(data) for chunk in answer.chunks for data in chunk.packets]
    expected = RETRANSMISSION_BIT, feed_id, request.channel_id, answer.adapter_id, request.session
    newest_seq = 0
    for each in packets:
        is_whole = each[:5] == expected and len(each.runs) == each.message_count == 1
        is_next = newest_seq < each.first_message_seq < point.place.message_seq
        is_before = each.end_input_seq <= point.place.input_seq
        is_before &= all(run.end_source_seq <= point.next_source_seqs.get(run.source_stream_id, 0) for run in each.runs)
        if not (is_whole and is_next and is_before):
            raise PacketRefused(Refusal.FORGED, f"{each[:10]} is not a last value before {point} after {newest_seq}")
        newest_seq = each.first_message_seq
    if len(packets) != answer.first.message_count:
        raise PacketRefused(Refusal.TRUNCATED, f"{len(packets)} last values of {answer.first.message_count}")
    return LastValues(packets, point)


def _point(first: replay_pb2.LastValuesChunk) -> ResumePoint:
    """Raises: PacketRefused: the position is impossible."""
    position, epoch = first.position, first.epoch
    lineage = checked_lineage([(epoch.epoch, epoch.first_input_seq, epoch.first_message_seq)])
    place = Place(position.next_input_seq, position.next_message_seq)
    numbers = *place, *position.next_source_seqs.values()
    if not all(0 < number <= SEQ_MAX for number in numbers) or epoch.first_input_seq > place.input_seq:
        raise PacketRefused(Refusal.MALFORMED, f"an impossible position: {place} in {lineage}")
    return ResumePoint(place, lineage, dict(position.next_source_seqs))
