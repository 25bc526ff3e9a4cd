"""How an application reads a subscription: messages, batches or items, with `for` or `async for`.

A `Reading` has one iterator for all loops over it, so a loop that was left continues where it was when another begins:
nothing is skipped or repeated. An item counts as handled when the application asks for what follows it, or leaves the
subscription's `with` block without an exception; a durable cursor relies on that.

`async for` reads in a thread of its own (`polling_thread`).
"""

from __future__ import annotations

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, Self, TypeVar

from tandemfeed.client_lib.errors import AuthorizationRefused, TooSlow
from tandemfeed.client_lib.items import Batch, Event, Item, Revoked
from tandemfeed.client_lib.messages.message import Message, MessageClasses
from tandemfeed.client_lib.own_process import OwnProcess, end_when_forked
from tandemfeed.client_lib.reading.cursor import Cursor, CursorUnusable
from tandemfeed.client_lib.reading.lag import Disconnected, LagPolicy
from tandemfeed.client_lib.reading.polling_thread import PolledItems, PollingThread
from tandemfeed.client_lib.reading.storage import NotStored, StoredAgain
from tandemfeed.client_lib.tables import Batches

M = TypeVar("M")
T_co = TypeVar("T_co", covariant=True)


class Reading(Generic[T_co]):
    """One way to read a subscription; iterate over it with `for` or `async for`.

    Args:
        source: of items.
        expand: what an item becomes in this reading; it is exhausted before the item counts as handled.
    """

    def __init__(self, source: ItemSource, expand: Callable[[Item], Iterable[T_co]]) -> None:
        self._source, self._expand = source, expand
        self._iterator: Iterator[T_co] | None = None
        self._async_iterator: AsyncIterator[T_co] | None = None

    def __iter__(self) -> Iterator[T_co]:
        if self._iterator is None:
            self._iterator = self._iterate()
        return self._iterator

    def __aiter__(self) -> AsyncIterator[T_co]:
        if self._async_iterator is None:
            self._async_iterator = self._iterate_async()
        return self._async_iterator

    def _iterate(self) -> Iterator[T_co]:
        source = self._source
        try:
            while (item := source.take()) is not None:
                for each in self._expand(item):
                    yield each
                    if source.is_ended:  # the rest of the item is not handled
                        source.check()
                        return
                source.handled()
        except Exception:
            self._iterator = None  # the next loop continues with another
            source.put_event_back()
            raise

    async def _iterate_async(self) -> AsyncIterator[T_co]:
        source = self._source
        try:
            while (item := await source.take_async()) is not None:
                for each in self._expand(item):
                    yield each
                    if source.is_ended:
                        source.check()
                        return
                source.handled()
        except Exception:
            self._async_iterator = None
            source.put_event_back()
            raise


class Readable(ABC, Generic[M]):
    """What an application reads of a subscription, and how.

    Args:
        kind: the class of the messages to yield; None: all.
        on_event: called with each event by readings that do not yield events.
        cursor: keeps how far the application has handled the subscription.
        lag_policy: what happens if the application is slow.

    Attributes:
        process: to which it belongs.
    """

    def __init__(
        self, kind: type[M] | None, on_event: Callable[[Event], object], cursor: Cursor | None, lag_policy: LagPolicy
    ) -> None:
        self._kind, self._on_event, self.cursor, self.lag_policy = kind, on_event, cursor, lag_policy
        self.process = OwnProcess("subscription")
        self._is_left = self._is_not_stored = False
        self._polled: list[Item] = []
        self._pushed_back: M | None = None  # the message whose handler raised in `run`
        self._source = ItemSource(self, self._on_handled)
        self._messages: Reading[M] = Reading(self._source, self._expand_messages)
        self._batches = Reading(self._source, self._expand_batch)
        self._items: Reading[Item] = Reading(self._source, lambda item: (item,))

    @property
    @abstractmethod
    def is_closed(self) -> bool:
        """True once there is nothing more to read."""

    @property
    @abstractmethod
    def classes(self) -> MessageClasses:
        """The classes of the feed's messages."""

    @abstractmethod
    def topic_of(self, channel_id: int) -> str:
        """The topic of a channel, also of one that is not granted any more."""

    @abstractmethod
    def open(self) -> None:
        """Begin, if it has not begun."""

    @abstractmethod
    def open_items(self) -> PolledItems | None:
        """Begin, and return what is polled then; None: it was stopped before."""

    @abstractmethod
    def stop(self) -> None:
        """End the loop."""

    @abstractmethod
    def close(self) -> None:
        """Stop, and release everything."""

    @abstractmethod
    def poll_unhandled(self, timeout_s: float | None = None) -> list[Item]:
        """As `poll`, for those who report themselves what was handled."""

    def __iter__(self) -> Iterator[M]:
        return iter(self._messages)

    def __aiter__(self) -> AsyncIterator[M]:
        return aiter(self._messages)

    def batches(self) -> Reading[Batch]:
        """The messages as batches, one for each packet: fast, because nothing is decoded message by message."""
        return self._batches

    def items(self) -> Reading[Item]:
        """Batches and events, in stream order."""
        return self._items

    def run(self, on_message: Callable[[M], object], on_error: Callable[[Exception, M], object] | None = None) -> None:
        """Call a function with each message, until the subscription ends.

        Args:
            on_error: called with the exception of a call and its message, which counts as handled then. None: the
                exception is raised here; the message is not handled, and the next `run` begins with it.
        """
        self.process.check()
        while True:
            if self._pushed_back is None:
                message = next(iter(self._messages), None)
                if message is None:
                    return
            else:
                message, self._pushed_back = self._pushed_back, None
            try:
                on_message(message)
            except Exception as error:
                if on_error is None:
                    self._pushed_back = message
                    raise
                on_error(error, message)

    def read(self, message_count: int, timeout_s: float | None = None) -> Batches:
        """The batches with the next messages, as a table: at least that many, fewer after the time-out.

        They count as handled at the next call. If an event's handler raises, the next call begins with the same batches
        and this event.
        """
        self.process.check()
        give_up_at_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        self._handle_polled()
        source, found, count = self._source, list[Batch](), 0
        try:
            while count < message_count and source.wait(give_up_at_s):
                for item in source.waiting():
                    for batch in self._expand_batch(item):
                        found.append(batch)
                        count += batch.message_count
                if time.monotonic() >= give_up_at_s:
                    break
        except BaseException:
            source.put_back(found)
            raise
        self._polled = list(found)
        return Batches(found, self.classes)

    def poll(self, timeout_s: float | None = None) -> list[Item]:
        """Run the loop until there are items, the time-out (None: no limit) has passed or the subscription is closed.

        Returns:
            The items in stream order; empty after a time-out or once closed. They count as handled at the next call.
        """
        self.process.check()
        self._handle_polled()
        self._source.wait(math.inf if timeout_s is None else time.monotonic() + timeout_s)
        items = list(self._source.waiting())
        self._polled = list(items)  # the application may change its own list
        return items

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._leave(kind)
        self.close()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.open)
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        self._leave(kind)
        await self._source.close_async()
        await asyncio.to_thread(self.close)

    # ---- inside ----

    def _expand_messages(self, item: Item) -> Iterator[M]:
        if not isinstance(item, Batch):
            self._pass_event(item)
        elif self._kind is None and self.cursor is None:
            yield from item.messages()
        else:
            kind: type[Any] = self._kind or Message
            for message in item.messages():
                if self.cursor is not None:
                    self.cursor.given = message
                if isinstance(message, kind):
                    yield message

    def _expand_batch(self, item: Item) -> tuple[Batch, ...]:
        if isinstance(item, Batch):
            return (item,)
        self._pass_event(item)
        return ()

    def _pass_event(self, event: Event) -> None:
        self._on_event(event)
        if isinstance(event, Revoked) and event.is_last:
            raise AuthorizationRefused(event.reason, event.topics)
        if isinstance(event, Disconnected):
            raise TooSlow(event.reason)

    def _handle_polled(self) -> None:
        """What `poll` or `read` returned was handled: all of it, before anything is stored, as the cursor's note covers
        all of it."""
        polled, self._polled = self._polled, []
        if polled:
            self._on_handled(*polled)

    def _on_handled(self, *items: Item) -> None:
        if self.cursor is not None:
            for item in items:
                if isinstance(item, Batch):
                    self.cursor.handled(self.topic_of(item.channel_id), item)
            if not self.cursor.due_in_s:
                self.store_handled()

    @property
    def store_in_s(self) -> float | None:
        """In how many seconds to store what was handled; None: all is stored."""
        return self.cursor.due_in_s if self.cursor is not None and self.cursor.is_dirty else None

    def store_handled(self) -> None:
        """Store how far the application has handled the subscription, without what it has now."""
        self._store_cursor(is_present_handled=False)

    def store_cursor(self) -> None:
        """Store how far the application has handled the subscription, including what it has now (a message, a batch, or
        all that `poll` or `read` returned), and the cursor's note: on return, they are on the disk.

        Raises:
            CursorUnusable: the file cannot be written; the text says what to do. The subscription continues.
        """
        self.process.check()
        self._handle_polled()
        failed = self._store_cursor(is_present_handled=True)
        if failed is not None:
            raise CursorUnusable(failed.reason)

    def _store_cursor(self, *, is_present_handled: bool) -> NotStored | None:
        """Store the cursor, or report once that this fails; the position stays in memory, and is stored later."""
        cursor = self.cursor
        assert cursor is not None, "the subscription has no cursor"
        try:
            cursor.write(self._snapshot(cursor, is_present_handled=is_present_handled))
        except OSError as error:
            failed = NotStored.because(cursor.path, error, "the position is kept in memory")
            if not self._is_not_stored:
                self._is_not_stored = True
                self._on_event(failed)
            return failed
        if self._is_not_stored:
            self._is_not_stored = False
            self._on_event(StoredAgain(str(cursor.path)))
        return None

    def _snapshot(self, cursor: Cursor, *, is_present_handled: bool) -> dict[str, Any]:
        present, given = self._source.present, cursor.given
        if not isinstance(present, Batch) or (given is None and not is_present_handled):
            return cursor.snapshot()
        if is_present_handled:
            given = None if given is None else present.message_after(given)
        return cursor.snapshot(self.topic_of(present.channel_id), present, given)

    def _leave(self, kind: object) -> None:
        """The application leaves the subscription. Args: kind: of the exception with which it does, or None."""
        # Its `with` block ends within that of its client, or in a forked process, which has handled nothing.
        if self._is_left or self.process.is_inherited:
            return
        self._is_left = True
        if self.cursor is not None:
            if kind is None:
                self._handle_polled()
            self._store_cursor(is_present_handled=kind is None and self._pushed_back is None)


class ItemSource:
    """The items of a subscription, one at a time, for all its readings.

    Args:
        subscription: polled by `take`, or by the thread that `take_async` starts; use one of the two.
        on_handled: called with each item after the application handled it.

    Attributes:
        is_ended: the application has called `stop` or `close`, or this is a forked process: there is nothing more.
    """

    def __init__(self, subscription: Readable[Any], on_handled: Callable[[Item], None]) -> None:
        self._subscription, self._on_handled = subscription, on_handled
        self.check, self.is_ended = subscription.process.check, False
        end_when_forked(self)
        self._waiting: deque[Item] = deque()
        self._thread: PollingThread | None = None
        self.present: Item | None = None  # taken, and not handled yet

    def take(self) -> Item | None:
        """The next item; None at the end."""
        if not self.wait():
            return None
        self.present = self._waiting.popleft()
        return self.present

    def wait(self, give_up_at_s: float = math.inf) -> bool:
        """Poll until there are items. Returns False if there are none by then, or the subscription is closed. What was
        handled is stored meanwhile.

        Args:
            give_up_at_s: on the monotonic clock.
        """
        if self.is_ended:
            self.check()
            return False
        subscription, waiting = self._subscription, self._waiting
        while not waiting and not subscription.is_closed:
            left_s = max(0.0, give_up_at_s - time.monotonic())
            store_in_s = subscription.store_in_s
            wait_s = left_s if store_in_s is None else min(left_s, store_in_s)
            waiting.extend(subscription.poll_unhandled(None if wait_s == math.inf else wait_s))
            if not waiting:
                if store_in_s is not None and store_in_s <= left_s:
                    subscription.store_handled()
                elif left_s == 0 or time.monotonic() >= give_up_at_s:
                    break
        return bool(waiting) and not self.is_ended

    def waiting(self) -> Iterator[Item]:
        """Take what waits. An item whose handler raises waits again."""
        while self._waiting and not self.is_ended:
            yield self._waiting[0]
            self._waiting.popleft()

    def put_back(self, batches: Sequence[Batch]) -> None:
        """Take these batches again next, because they were not returned."""
        self._waiting.extendleft(reversed(batches))

    async def take_async(self) -> Item | None:
        """The next item; None at the end. Raises what polling raised."""
        if self.is_ended:
            self.check()
            return None
        if self._thread is None:
            self._thread = PollingThread(self._subscription)
        while not self._waiting and not self.is_ended:
            store_in_s = self._subscription.store_in_s
            try:
                items = await asyncio.wait_for(self._thread.take(), store_in_s)
            except TimeoutError:
                self._subscription.store_handled()
                continue
            if items is None:
                return None
            self._waiting.extend(items)
        if self._has_ended():  # while it waited
            return None
        self.present = self._waiting.popleft()
        return self.present

    def handled(self) -> None:
        """Note that the application has handled the present item."""
        if self.present is not None:
            item, self.present = self.present, None
            self._on_handled(item)

    def put_event_back(self) -> None:
        """Take the present item again next, if it is an event, because its handler raised."""
        if self.present is not None and not isinstance(self.present, Batch):
            self._waiting.appendleft(self.present)
            self.present = None

    def _has_ended(self) -> bool:
        return self.is_ended

    def end_thread(self) -> None:
        """The subscription is closed."""
        if self._thread is not None:
            self._thread.end()

    async def close_async(self) -> None:
        """End the thread, if there is one."""
        if self._thread is not None:
            self._subscription.stop()
            self._thread.end()
            await self._thread.wait_ended()
