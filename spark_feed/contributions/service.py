"""The service that contributors call: checks what they may, and passes it to the stream of their topic."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import grpc

from tandemfeed.spark_feed.contributions.book import FIRST_NUMBER, ContributionRefused, Producer, Why
from tandemfeed.spark_feed.contributions.contributed_stream import ContributedStream
from tandemfeed.transport.calls.serving.call_context import caller_of, in_thread
from tandemfeed.transport.calls.serving.open_streams import OpenStreams
from tandemfeed.v1 import contribution_pb2, contribution_pb2_grpc

SERVICE_NAME = "tandemfeed.v1.Contribution"
CALLER_ROLES = frozenset({"client"})
MESSAGES_MAX = 1_000  # of a request
NUMBERS_MAX = 10_000  # of a cancellation
CALLS_MAX = 128  # in progress
CALLS_OF_ONE_MAX = 4  # of one identity: half of the threads
PRODUCER_FORM = re.compile(r"[A-Za-z0-9_.-]{1,64}")
INSTANCE_SIZE = 16
NUMBER_MAX = (1 << 63) - 1
CODES = {
    Why.NOT_OPEN: grpc.StatusCode.FAILED_PRECONDITION,
    Why.SUPERSEDED: grpc.StatusCode.FAILED_PRECONDITION,
    Why.OUT_OF_ORDER: grpc.StatusCode.OUT_OF_RANGE,
    Why.BUSY: grpc.StatusCode.ABORTED,
    Why.LIMIT: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Why.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
}
Result = TypeVar("Result")


class ContributionService(contribution_pb2_grpc.ContributionServicer):
    """Serves clients that are granted contributing to a topic.

    Args:
        streams: by topic.
    """

    def __init__(self, streams: Mapping[str, ContributedStream]) -> None:
        self._streams = streams
        self._calls = OpenStreams(CALLS_MAX, CALLS_OF_ONE_MAX)

    async def Open(  # noqa: N802
        self, request: contribution_pb2.OpenProducerRequest, context: grpc.ServicerContext
    ) -> contribution_pb2.OpenProducerReply:
        """Open a producer."""
        stream, producer = self._stream(request.topic, context), _producer(request, context)
        next_number = await self._call(context, stream.open, producer, request.instance)
        return contribution_pb2.OpenProducerReply(
            next_number=next_number, message_size_max=stream.message_size_max, session=stream.place.session
        )

    async def Contribute(  # noqa: N802
        self, request: contribution_pb2.ContributeRequest, context: grpc.ServicerContext
    ) -> contribution_pb2.ContributeReply:
        """Accept messages."""
        stream, producer = self._stream(request.topic, context), _producer(request, context)
        if not 1 <= len(request.messages) <= MESSAGES_MAX:
            _refuse(context, f"the request has {len(request.messages)} messages; it must have 1 to {MESSAGES_MAX}")
        if not FIRST_NUMBER <= request.first_number <= NUMBER_MAX:
            _refuse(context, f"first_number is {request.first_number}; it must be {FIRST_NUMBER} to {NUMBER_MAX}")
        next_number = await self._call(
            context, stream.contribute, producer, request.instance, request.first_number, list(request.messages),
            request.hold_ns,
        )  # fmt: skip
        return contribution_pb2.ContributeReply(next_number=next_number)

    async def Cancel(  # noqa: N802
        self, request: contribution_pb2.CancelContributionsRequest, context: grpc.ServicerContext
    ) -> contribution_pb2.CancelContributionsReply:
        """Cancel pending messages."""
        stream, identity = self._stream(request.topic, context), caller_of(context).identity
        numbers = list(request.numbers)
        if len(numbers) > NUMBERS_MAX:
            _refuse(context, f"the request has {len(numbers)} numbers; at most {NUMBERS_MAX} are allowed; split it")
        if numbers and not request.producer:
            _refuse(context, "the request has numbers but no producer, which has given them")
        name, chosen = request.producer or None, numbers or None
        outcome = await self._call(context, stream.cancel, identity, name, chosen)
        return contribution_pb2.CancelContributionsReply(count=outcome.message_count, numbers=outcome.numbers)

    def _stream(self, topic: str, context: grpc.ServicerContext) -> ContributedStream:
        caller, stream = caller_of(context), self._streams.get(topic)
        if stream is None or topic not in caller.contribute:
            text = f"topic {topic!r} takes no contributions here, or is not granted to {caller.identity}"
            context.abort(grpc.StatusCode.PERMISSION_DENIED, text)
        return stream

    async def _call(self, context: grpc.ServicerContext, work: Callable[..., Result], *arguments: Any) -> Result:
        try:
            with self._calls.one_more(caller_of(context).identity, context):
                return await in_thread(context, work, *arguments)
        except ContributionRefused as refused:
            context.abort(CODES[refused.why], str(refused))
        raise AssertionError("abort raises")


def _producer(
    request: contribution_pb2.OpenProducerRequest | contribution_pb2.ContributeRequest, context: grpc.ServicerContext
) -> Producer:
    if not PRODUCER_FORM.fullmatch(request.producer):
        _refuse(context, "producer must be 1 to 64 letters, digits, '_', '-' and '.'")
    if len(request.instance) != INSTANCE_SIZE:
        _refuse(context, f"instance has {len(request.instance)} bytes, expected {INSTANCE_SIZE}")
    return Producer(caller_of(context).identity, request.producer)


def _refuse(context: grpc.ServicerContext, text: str) -> None:
    context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
