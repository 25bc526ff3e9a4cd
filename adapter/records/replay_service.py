"""Replay for clients: serves missed messages from the output journal, without the engine."""

from __future__ import annotations

import asyncio
import functools
from collections import defaultdict
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing

import grpc

from tandemfeed.adapter.records.fair_turns import FairTurns
from tandemfeed.adapter.records.last_values.keeper import KeptTable, LastValueKeeper
from tandemfeed.adapter.records.last_values.table import Values
from tandemfeed.adapter.records.locating import LocatedSession
from tandemfeed.adapter.records.output_journal import OutputJournal
from tandemfeed.adapter.records.replay_pace import ALIVE_AFTER_S, ReplayPace
from tandemfeed.feedcore.range_set import RangeSet
from tandemfeed.feedcore.topics import any_topic_matches
from tandemfeed.feedcore.wire.lineage import EpochStart
from tandemfeed.feedcore.wire.output_packet import encode_output_packet
from tandemfeed.feedcore.wire.position import FIRST_SEQ
from tandemfeed.transport.calls.serving.call_context import caller_of, in_thread
from tandemfeed.transport.calls.serving.open_streams import OpenStreams
from tandemfeed.v1 import common_pb2, replay_pb2, replay_pb2_grpc

REPLAY_CHUNK_PACKETS = 256
REPLAY_COUNT_MAX = 1_000_000  # numbers in one request; a longer catch-up takes several
REPLAY_RANGES_MAX = 10_000  # each is a separate lookup
RANGES_OF_STEP = 64  # looked up before others get their turn; each takes up to a millisecond
OPEN_REPLAYS_MAX = 128  # each keeps a journal's reader open, even if its caller does not read
OPEN_REPLAYS_OF_ONE_MAX = 16


class ReplayService(replay_pb2_grpc.ReplayServicer):
    """Serves clients that are granted a channel's topic, and the feed's adapters.

    Owner: the serving loop. The attributes are set before any token is accepted, and stay.

    Attributes:
        feed: the feed's name; set with the topics after registration. Until then every channel is unknown.
        topics: channel_id -> topic, of the channels served.
        last_values: the tables of last values; None until registered.
        pace: of what clients are sent. The feed's adapters are not slowed down.
    """

    def __init__(self, journal: OutputJournal) -> None:
        self._journal = journal
        # What searches for long: one at a time, so that it takes neither threads nor the interpreter from repairs; of
        # tables, one copy of each, because the first one of a table reads the whole session.
        self._locating = FairTurns()
        self._copying: dict[KeptTable, FairTurns] = defaultdict(FairTurns)
        self._replays = OpenStreams(OPEN_REPLAYS_MAX, OPEN_REPLAYS_OF_ONE_MAX)
        self.pace = ReplayPace()
        self.last_values: LastValueKeeper | None = None
        self.feed = ""
        self.topics: Mapping[int, str] = {}

    async def Replay(  # noqa: N802
        self, request: replay_pb2.ReplayRequest, context: grpc.ServicerContext
    ) -> AsyncIterator[replay_pb2.ReplayChunk]:
        """The output journal's packets of the requested ranges, each packet once: first by ascending number, then
        provisional packets by source stream."""
        self._check_caller(request.channel_id, context)
        caller = caller_of(context)
        pace = ReplayPace() if caller.is_adapter_of(self.feed) else self.pace
        with self._replays.one_more(caller.identity, context):
            chunks = self._chunks(request, context, pace)
            try:
                while (packets := await in_thread(context, next, chunks, None)) is not None:
                    async with aclosing(pace.turn(caller.identity, sum(map(len, packets)))) as waiting:
                        async for _ in waiting:
                            yield replay_pb2.ReplayChunk()
                    yield replay_pb2.ReplayChunk(packets=packets)
            finally:
                await in_thread(context, chunks.close)

    async def Locate(  # noqa: N802
        self, request: replay_pb2.LocateRequest, context: grpc.ServicerContext
    ) -> replay_pb2.LocateReply:
        """Where a channel was at a time."""
        self._check_caller(request.channel_id, context)
        locate = functools.partial(
            self._journal.locate, message_seq=request.message_seq, any_session=request.any_session
        )
        async with self._locating.turn(caller_of(context).identity):
            found = await in_thread(context, locate, request.channel_id, request.at_unix_ns, request.session)
        return replay_pb2.LocateReply(sessions=map(_located, found))

    async def LastValues(  # noqa: N802
        self, request: replay_pb2.LastValuesRequest, context: grpc.ServicerContext
    ) -> AsyncIterator[replay_pb2.LastValuesChunk]:
        """The channel's table of last values, at its present position."""
        self._check_caller(request.channel_id, context)
        keeper = self.last_values
        table = None if keeper is None else keeper.table(request.channel_id, request.key)
        if keeper is None or table is None:
            return
        identity = caller_of(context).identity
        with self._replays.one_more(identity, context):
            looking = asyncio.ensure_future(self._newest(table, request.session, context))
            while not (await asyncio.wait({looking}, timeout=ALIVE_AFTER_S))[0]:
                yield replay_pb2.LastValuesChunk()
            found = looking.result()
            if found is None:
                return
            values, epoch = found
            position = common_pb2.MessageStreamState(
                epoch=values.epoch,
                next_input_seq=values.next_input_seq,
                next_message_seq=values.next_message_seq,
                next_source_seqs=values.next_source_seqs,
            )
            start = common_pb2.LineageEntry(**epoch._asdict())
            yield replay_pb2.LastValuesChunk(position=position, epoch=start, message_count=len(values.entries))
            chunks = _in_chunks(values.packets(keeper.feed_id), self.pace)
            while (packets := await in_thread(context, next, chunks, None)) is not None:
                async with aclosing(self.pace.turn(identity, sum(map(len, packets)))) as waiting:
                    async for _ in waiting:
                        yield replay_pb2.LastValuesChunk()
                yield replay_pb2.LastValuesChunk(packets=packets)

    async def _newest(
        self, table: KeptTable, session: int, context: grpc.ServicerContext
    ) -> tuple[Values, EpochStart] | None:
        async with self._copying[table].turn(caller_of(context).identity):
            return await in_thread(context, table.newest, session)

    def _chunks(
        self, request: replay_pb2.ReplayRequest, context: grpc.ServicerContext, pace: ReplayPace
    ) -> Generator[Sequence[bytes], None, None]:
        refusal = refusal_of(_ranges_of(request))
        if refusal is not None:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, refusal)
        yield from _in_chunks(self._packets(request), pace)

    def _packets(self, request: replay_pb2.ReplayRequest) -> Iterator[bytes | None]:
        """The packets; None after each range."""
        channel_id, journal, session = request.channel_id, self._journal, request.session
        for first, end in RangeSet((each.first, each.end) for each in request.input_ranges):
            yield from journal.replay(channel_id, first, end, session)
            yield None
        if request.HasField("message_range"):
            wanted_messages = request.message_range
            yield from journal.replay_messages(channel_id, wanted_messages.first, wanted_messages.end, session)
        wanted: dict[int, RangeSet] = {}
        for each in request.source_ranges:
            wanted.setdefault(each.source_stream_id, RangeSet()).add(each.range.first, each.range.end)
        if wanted:
            yield from journal.replay_provisional(channel_id, wanted, session)

    def _check_caller(self, channel_id: int, context: grpc.ServicerContext) -> None:
        caller = caller_of(context)
        topic = self.topics.get(channel_id)
        if topic is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no channel {channel_id}")
        if not caller.is_adapter_of(self.feed) and not any_topic_matches(caller.topics, topic):
            context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                f"{caller.identity} has no grant for topic {topic!r} and is not an adapter of feed {self.feed!r}",
            )


def _located(found: LocatedSession) -> replay_pb2.LocatedSession:
    position = common_pb2.MessageStreamState(
        epoch=found.epoch, next_input_seq=found.place.input_seq, next_message_seq=found.place.message_seq
    )
    return replay_pb2.LocatedSession(
        session=found.session,
        position=position,
        at_unix_ns=found.at_unix_ns,
        is_oldest=found.is_oldest,
        heartbeat=encode_output_packet(found.heartbeat),
    )


def _in_chunks(packets: Iterable[bytes | None], pace: ReplayPace) -> Generator[Sequence[bytes], None, None]:
    """Chunks of packets. One may be empty: after many ranges that are not here, so that no step takes long.

    Args:
        packets: None stands for the end of a range.
    """
    chunk: list[bytes] = []
    size = range_count = 0
    for packet in packets:
        if packet is None:
            range_count += 1
            is_full = range_count == RANGES_OF_STEP
        else:
            is_full = len(chunk) == REPLAY_CHUNK_PACKETS or (bool(chunk) and size + len(packet) > pace.chunk_size)
        if is_full:
            yield chunk
            chunk, size, range_count = [], 0, 0
        if packet is not None:
            chunk.append(packet)
            size += len(packet)
    if chunk:
        yield chunk


def _ranges_of(request: replay_pb2.ReplayRequest) -> Iterator[replay_pb2.NumberRange]:
    yield from request.input_ranges
    if request.HasField("message_range"):
        yield request.message_range
    yield from (each.range for each in request.source_ranges)


def refusal_of(ranges: Iterable[replay_pb2.NumberRange]) -> str | None:
    """Why these ranges are not served; None if they are."""
    number_count = range_count = 0
    for each in ranges:
        if not FIRST_SEQ <= each.first < each.end:
            return f"range [{each.first}, {each.end}) is invalid; first must be >= {FIRST_SEQ} and end > first"
        number_count += each.end - each.first
        range_count += 1
    if number_count > REPLAY_COUNT_MAX or range_count > REPLAY_RANGES_MAX:
        return (
            f"the request has {number_count} numbers in {range_count} ranges; at most {REPLAY_COUNT_MAX} "
            f"in {REPLAY_RANGES_MAX} are allowed; split it"
        )
    return None
