"""A live subscription for a Spark query: logs in, and feeds each granted channel from its position."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

from tandemfeed.client_lib.client import Client, connect
from tandemfeed.client_lib.login.grant import Grant
from tandemfeed.client_lib.messages.message import Message
from tandemfeed.client_lib.stream.sockets.transport_choice import Transport
from tandemfeed.client_lib.stream.starts import Start
from tandemfeed.client_lib.stream.subscription import Subscription
from tandemfeed.client_lib.stream.trust.stream_trust import VerifyMode
from tandemfeed.spark_feed.spark.errors import TableError
from tandemfeed.spark_feed.spark.live.channel_feed import ChannelFeed, Entry
from tandemfeed.spark_feed.spark.live.positions import Position
from tandemfeed.spark_feed.spark.options import chosen, required

LATEST, EARLIEST = "latest", "earliest"  # the option `startingOffsets`
REACH_TIMEOUT_S = 120.0  # to read again what a query took before it was stopped
Positions = Mapping[int, Position]


def connected(options: Any) -> Client:
    """A client logged in as the options say.

    Raises:
        TableError: an option is missing or cannot be used; ClientError: of the login.
    """
    secret_file = options.get("secretFile", "")
    return connect(
        admin=required(options, "admin"),
        ca=required(options, "ca"),
        identity=options.get("identity", ""),
        secret=Path(secret_file).read_text().strip() if secret_file else None,
        certificate_file=options.get("certificateFile"),
        key_file=options.get("keyFile"),
        token_file=options.get("tokenFile"),
        interface=options.get("interface", "127.0.0.1"),
        datagrams=options.get("datagrams", "zeromq"),
    )


def granted(client: Client, options: Any) -> Grant:
    """What is granted of the feed and topics of the options."""
    with _subscribe(client, options, _topics(options), "live") as subscription:
        return subscription.grant


class LiveFeed:
    """The channels of a query's subscription.

    Args:
        positions: where each channel begins; a channel that is not in it begins as `startingOffsets` says, or, if there
            are others, live.
    """

    def __init__(self, options: Any, positions: Positions | None) -> None:
        may_lose = chosen(options, "failOnDataLoss", ("true", "false")) == "false"
        self.channels: dict[int, ChannelFeed] = {}
        with ExitStack() as stack:
            client = stack.enter_context(connected(options))
            grant = granted(client, options)
            for channel_id, topic in grant.topics_by_channel.items():
                begin = _first_position(options, grant.session) if positions is None else positions.get(channel_id)
                subscribe = _subscriber(client, options, topic, _topics_of(grant, channel_id, topic))
                feed = self.channels[channel_id] = ChannelFeed(channel_id, subscribe, begin, may_lose=may_lose)
                stack.callback(feed.close)
            if positions and (gone := positions.keys() - self.channels.keys()):
                raise TableError(f"channels {sorted(gone)} are no longer granted; give the query a new checkpoint")
            self._stack = stack.pop_all()

    @property
    def message_model(self) -> bytes:
        """The message model (SBE schema, XML)."""
        return next(iter(self.channels.values())).message_model

    @property
    def begin(self) -> dict[int, Position]:
        """Where the channels began."""
        return {channel_id: feed.begin for channel_id, feed in self.channels.items()}

    def next_positions(self, start: Positions, rows_max: int, target: Positions | None = None) -> dict[int, Position]:
        """The positions after the next messages, at most about `rows_max`: whole packets, shared among the channels.

        Args:
            target: do not go beyond it, and wait for what is before it.

        Raises:
            TableError: adapters did not send what is before the target.
        """
        share = max(1, rows_max // len(self.channels))
        return {
            each: self._after(feed, start.get(each, feed.begin), share, target.get(each) if target else None)
            for each, feed in self.channels.items()
        }

    def wait_until_reached(self, end: Positions) -> None:
        """Wait until everything before these positions is here.

        Raises:
            TableError: the stream ended, or adapters did not send it in time.
        """
        for channel_id, position in end.items():
            feed = self.channels[channel_id]
            if not feed.wait_until_reached(position, REACH_TIMEOUT_S):
                raise TableError(
                    f"channel {channel_id}: the adapters did not send again what the query had taken up to {position} "
                    f"within {REACH_TIMEOUT_S:g} s; their journals may have released it"
                )
            feed.entries()  # raises if the stream failed

    def forget(self, position: Positions) -> None:
        """Drop what is before these positions."""
        for channel_id, each in position.items():
            self.channels[channel_id].forget(each)

    @classmethod
    def newest_positions(cls, options: Any) -> dict[int, Position]:
        """Where each channel is now."""
        now = cls(type(options)({**options, "startingoffsets": LATEST}), None)
        try:
            return now.begin
        finally:
            now.close()

    def close(self) -> None:
        """End all subscriptions."""
        self._stack.close()

    @staticmethod
    def _after(feed: ChannelFeed, start: Position, rows_max: int, target: Position | None) -> Position:
        count, end = 0, start
        if target is not None and not start.is_numbered_from(target):
            feed.end_at(target)
            if not feed.wait_for_more(start, REACH_TIMEOUT_S):
                raise TableError(
                    f"channel {feed.channel_id}: the adapters did not send what they had when the query began, up to "
                    f"message {target.message_seq}, within {REACH_TIMEOUT_S:g} s: run the query again"
                )
        for entry in feed.entries():
            if start.has_reached(entry.after):
                continue
            if target is not None and (end.is_numbered_from(target) or _is_beyond(entry, target)):
                break
            count += entry.batch.message_count if entry.batch is not None else 0
            if count > rows_max and end is not start:
                break
            if entry.after.has_reached(end):  # what was read again after a takeover may come in another order
                end = entry.after
        return end


def _is_beyond(entry: Entry, target: Position) -> bool:
    """True if an entry has messages after a target."""
    if entry.batch is None:
        return False
    first = Position(entry.batch.packet.session, 0, entry.batch.first_message_seq)
    return first.is_numbered_from(target) and not entry.batch.is_provisional


def _first_position(options: Any, session: int) -> Position | None:
    text = options.get("startingOffsets", LATEST)
    if text == LATEST:
        return None
    if text == EARLIEST:
        return Position(session, 0, 1)
    if not text.isdecimal() or int(text) < 1:
        raise TableError(f"option 'startingOffsets' is {text!r}; it must be latest, earliest or a message_seq")
    return Position(session, 0, int(text))


def _topics(options: Any) -> list[str]:
    return [topic.strip() for topic in options.get("topics", "").split(",") if topic.strip()]


def _topics_of(grant: Grant, channel_id: int, topic: str) -> list[str]:
    """The topics of one channel, with the granted symbols only."""
    symbols = grant.symbols_by_channel.get(channel_id)
    return [topic] if symbols is None else [f"{topic}.{word}" for word in sorted(symbols.words)]


def _subscriber(
    client: Client, options: Any, topic: str, topics: list[str]
) -> Callable[[int | None], Subscription[Message]]:
    return lambda start: _subscribe(client, options, topics, "live" if start is None else {topic: start})


def _subscribe(client: Client, options: Any, topics: list[str], start: Start) -> Subscription[Message]:
    verify: VerifyMode = chosen(options, "verify", get_args(VerifyMode), "alarm")
    transport: Transport = chosen(options, "transport", get_args(Transport), "auto")
    feed = required(options, "feed")
    return client.subscribe(topics, feed=feed, start=start, verify=verify, transport=transport)
