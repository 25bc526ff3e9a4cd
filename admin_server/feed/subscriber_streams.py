"""The open streams of a feed's subscribers, and what adapters learn of them. `FeedState` locks each call."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from tandemfeed.admin_server.feed.keys.admissions import Admission, Admissions
from tandemfeed.admin_server.feed.streams import Attendance, Subscriber
from tandemfeed.admin_server.policy.rules import Extent
from tandemfeed.v1 import admin_pb2


class SubscriberStreams:
    """Not safe for several threads at once.

    Args:
        attending: adapter_id -> the open stream of the adapter.
    """

    def __init__(self, attending: Mapping[int, Attendance]) -> None:
        self._attending = attending
        self._open: dict[int, Subscriber] = {}
        self._admissions = Admissions()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, subscriber: Subscriber) -> None:
        """A subscription began, or has other channels."""
        self._open[id(subscriber)] = subscriber
        self._admit(subscriber)

    def remove(self, subscriber: Subscriber, *, is_revoked: bool = False) -> None:
        """A subscription ended. It may return, unless all its channels were revoked."""
        if self._open.pop(id(subscriber), None) is not None:
            changed = self._admissions.end(id(subscriber), time.monotonic_ns(), is_revoked=is_revoked)
            if changed is not None:
                self.announce(changed)

    def limit(self, extent: Callable[[str, int], Extent]) -> None:
        """Withdraw at once what is no longer granted, whether or not the client reads its updates.

        Args:
            extent: how much of a channel an identity may receive now.
        """
        for subscriber in self._open.values():
            left = {each: part & extent(subscriber.identity, each) for each, part in subscriber.extents.items()}
            left = {each: part for each, part in left.items() if part}
            if left != subscriber.extents:
                subscriber.extents = left
                self._admit(subscriber)

    def streams(self) -> list[Subscriber]:
        """The open subscriptions, the oldest first."""
        return list(self._open.values())

    def end_revoked(self, is_revoked: Callable[[Subscriber], bool], reason: str) -> list[Subscriber]:
        """End the calls of these subscriptions, and return them. Args: reason: refuse them with this text."""
        ended = [each for each in self._open.values() if is_revoked(each)]
        for subscriber in ended:
            self.remove(subscriber, is_revoked=True)
            subscriber.end(reason)
        return ended

    def notify(self) -> None:
        """Request an update for every subscriber."""
        for subscriber in self._open.values():
            subscriber.notify()

    def end(self) -> None:
        """End every stream."""
        for subscriber in self._open.values():
            subscriber.end("")

    def announce(self, changed: admin_pb2.SubscriptionsChanged | None = None) -> None:
        """Send a change to the adapters, and everything to those that are new or have missed a change."""
        for attendance in self._attending.values():
            if not attendance.has_room:
                attendance.knows_subscriptions = False
            elif not attendance.knows_subscriptions:
                attendance.order(subscriptions_changed=self._admissions.whole())
                attendance.knows_subscriptions = True
            elif changed is not None:
                attendance.order(subscriptions_changed=changed)

    def run_timers(self) -> None:
        """Stop counting subscriptions that did not return in time."""
        changed = self._admissions.expire(time.monotonic_ns())
        if changed is not None:
            self.announce(changed)

    def next_deadline_ns(self) -> int | None:
        """When `run_timers` is due."""
        return self._admissions.next_expiry_ns()

    def _admit(self, subscriber: Subscriber) -> None:
        """Admit a subscription to just its channels; to none, if all were revoked."""
        name, channel_ids = id(subscriber), frozenset(subscriber.extents)
        if channel_ids:
            self.announce(self._admissions.begin(name, Admission(subscriber.unicast_key, channel_ids)))
        elif (changed := self._admissions.end(name, time.monotonic_ns(), is_revoked=True)) is not None:
            self.announce(changed)
