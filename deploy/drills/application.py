"""The application of a witness: it reads a subscription as users do, in one of several shapes, and checks what it gets.

The checks use nothing but what the shape offers. While it reads, the application counts what is missing and what is
repeated or late, by (session, source stream, `source_seq`); some fields of each tick are kept, so that the content can
later be compared with the recording.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemfeed.client_lib import Batch, Batches, Client, Message, Subscription

CONTENT_DTYPE = np.dtype(
    [
        ("stream", "<u2"),
        ("source_seq", "<u8"),
        ("symbol", "S8"),
        ("event_at", "<u8"),
        ("value", "<i8"),
        ("session", "<u4"),
    ]
)
VALUE_FIELDS = {"TradeTick": "price", "QuoteTick": "bidPrice", "OrderEvent": "price"}
VALUE_ATTRIBUTES = {"TradeTick": "price", "QuoteTick": "bid_price", "OrderEvent": "price"}
PRICE_DIGITS = 9
FRAME_MESSAGES, FRAME_TIMEOUT_S = 200, 0.2  # for a data frame


class Application:
    """Takes messages in any form, checks their order, and keeps their fields.

    Args:
        on_first: called when there is a first message.
        starts_live: the first message of a source stream may have any number.

    Attributes:
        delivered, missing, repeated: source messages.
    """

    def __init__(self, on_first: Callable[[], object], *, starts_live: bool) -> None:
        self._on_first, self._starts_live = on_first, starts_live
        self._parts: list[NDArray[np.void]] = []
        self._rows: list[tuple[Any, ...]] = []
        self._times: list[tuple[int, int]] = []  # received (monotonic clock), messages
        self._highest: dict[tuple[int, int], int] = {}  # by session and source stream
        self.delivered = self.missing = self.repeated = 0

    def take_message(self, message: Message) -> None:
        """Take one message."""
        origin, raw = message.origin, message.raw
        stream, seq, session = origin.source_stream_id, origin.source_seq, origin.session
        self._check(session, stream, seq, seq)
        if value := VALUE_ATTRIBUTES.get(type(message).__name__):
            self._rows.append((stream, seq, raw.symbol, raw.event_at, getattr(raw, value), session))
        else:
            self._rows.append((stream, seq, b"", 0, 0, session))
        self._times.append((time.monotonic_ns(), 1))

    def take_batch(self, batch: Batch) -> None:
        """Take the numpy views of a batch."""
        for model, rows in batch.arrays():
            part = identified(batch, rows)
            if value := VALUE_FIELDS.get(model.name):
                part["symbol"], part["event_at"], part["value"] = rows["symbol"], rows["eventAt"], rows[value]
            seqs = part["source_seq"]
            if len(part) == 1 + (last := int(seqs[-1])) - (first := int(seqs[0])):
                self._keep(part, batch.received_monotonic_ns)
                self._check(int(part["session"][0]), int(part["stream"][0]), first, last)
            else:
                self._take_part(part, batch.received_monotonic_ns)

    def take_frames(self, batches: Batches) -> None:
        """Take a pandas data frame for each type of message; the batches say which rows they are."""
        found: dict[str, list[NDArray[np.void]]] = {}
        places: dict[str, list[int]] = {}
        count = 0
        for batch in batches:
            for model, rows in batch.arrays():
                found.setdefault(model.name, []).append(identified(batch, rows))
                places.setdefault(model.name, []).extend(range(count, count + len(rows)))
                count += len(rows)
        whole = np.empty(count, CONTENT_DTYPE)
        for name, parts in found.items():
            frame, part = batches.to_pandas(name), np.concatenate(parts)
            assert len(frame) == len(part)
            if name in VALUE_FIELDS:
                part["symbol"] = frame["symbol"].astype(str).to_numpy().astype("S8")
                part["event_at"] = frame["eventAt"].astype("int64").to_numpy().astype(np.uint64)
                part["value"] = [int(price.scaleb(PRICE_DIGITS)) for price in frame[VALUE_FIELDS[name]]]
            whole[places[name]] = part
        if count:
            self._take_part(whole, time.monotonic_ns())

    def has_all(self, until: dict[int, int], session: int) -> bool:
        """True if the last message of each source stream was taken. Args: session: 0: the newest."""
        highest = dict(self._highest)
        session = session or max((known for known, _ in highest), default=0)
        return all(highest.get((session, stream), 0) >= count for stream, count in until.items())

    def save(self, path: Path) -> None:
        """Write two arrays in the order of delivery: the messages to `path`, their receive times to NAME.times.npy."""
        parts = [*self._parts, np.array(self._rows, CONTENT_DTYPE)]
        np.save(path, np.concatenate(parts))
        times = np.array(self._times, np.int64).reshape(-1, 2)
        np.save(path.with_suffix(".times.npy"), np.repeat(times[:, 0], times[:, 1]))

    def _take_part(self, part: NDArray[np.void], at_ns: int) -> None:
        """Messages of any streams, in the order of delivery."""
        self._keep(part, at_ns)
        keys = part["session"].astype(np.int64) << 16 | part["stream"]
        seqs = part["source_seq"].astype(np.int64)
        ends = np.flatnonzero((np.diff(keys) != 0) | (np.diff(seqs) != 1)) + 1
        for stretch in np.split(np.arange(len(part)), ends):
            first, last = part[stretch[0]], part[stretch[-1]]
            self._check(int(first["session"]), int(first["stream"]), int(first["source_seq"]), int(last["source_seq"]))

    def _keep(self, part: NDArray[np.void], at_ns: int) -> None:
        self._parts.append(part)
        self._times.append((at_ns, len(part)))

    def _check(self, session: int, stream: int, first: int, last: int) -> None:
        """Consecutive source messages."""
        if not self.delivered:
            self._on_first()
        self.delivered += last - first + 1
        key = (session, stream)
        highest = self._highest.get(key, first - 1 if self._starts_live else 0)
        self.missing += max(first - highest - 1, 0)
        self.repeated += max(min(last, highest) - first + 1, 0)
        self._highest[key] = max(highest, last)


def identified(batch: Batch, rows: NDArray[np.void]) -> NDArray[np.void]:
    """A row of content for each message, with its identity; adapters put one run in a packet."""
    part = np.zeros(len(rows), CONTENT_DTYPE)
    run = batch.packet.runs[0]
    part["stream"], part["session"] = run.source_stream_id, batch.packet.session
    part["source_seq"] = run.first_source_seq + rows["source_offset"].astype(np.uint64)
    return part


def read_messages(subscription: Subscription[Any], application: Application) -> None:
    """The iterator, left and entered again now and then."""
    while not subscription.is_closed:
        for number, message in enumerate(subscription, 1):
            application.take_message(message)
            if number % 1_000 == 0:
                break


def read_by_callbacks(subscription: Subscription[Any], application: Application) -> None:
    """`run`, with a function that raises now and then before it has taken the message."""
    count = 0

    def handle(message: Message) -> None:
        nonlocal count
        count += 1
        if count % 1_000 == 0:
            raise InterruptedError("this message is not handled, and comes again")
        application.take_message(message)

    while not subscription.is_closed:
        try:
            subscription.run(handle)
        except InterruptedError:
            continue


def read_batches(subscription: Subscription[Any], application: Application) -> None:
    """Batches, as numpy views."""
    for batch in subscription.batches():
        application.take_batch(batch)


def read_frames(subscription: Subscription[Any], application: Application) -> None:
    """Tables of some hundred messages, as pandas data frames."""
    while not subscription.is_closed:
        application.take_frames(subscription.read(FRAME_MESSAGES, FRAME_TIMEOUT_S))


READERS = {
    "iterator": read_messages,
    "callbacks": read_by_callbacks,
    "batches": read_batches,
    "frames": read_frames,
}


def read(shape: str, client: Client, begin: Callable[[Client], Subscription[Any]], application: Application) -> None:
    """Read a subscription to its end. Args: begin: subscribes."""
    with client, begin(client) as subscription:
        READERS[shape](subscription, application)


async def read_in_coroutine(
    client: Client, begin: Callable[[Client], Subscription[Any]], application: Application
) -> None:
    """The same with `async for`."""
    async with client, begin(client) as subscription:
        async for message in subscription:
            application.take_message(message)
