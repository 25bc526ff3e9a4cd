"""A client's side of its call for subscriptions, controlled by a test."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Iterable, Iterator

import grpc

from tandemfeed.feedcore.topics import TopicEntry
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc, common_pb2

WAIT_S = 60.0


class RefusedRequest(Exception):
    """The server refused a request. Attributes: answer: as it came."""

    def __init__(self, answer: admin_pb2.SubscriptionUpdate) -> None:
        super().__init__(answer.refused.reason)
        self.answer = answer

    @property
    def kind(self) -> admin_pb2.RefusalKind:
        """The kind of refusal."""
        return self.answer.refused.kind


def selections(entries: Iterable[TopicEntry | str]) -> list[admin_pb2.TopicSelection]:
    """Topics to add, and entries, as a request has them."""
    given = [TopicEntry(each) if isinstance(each, str) else each for each in entries]
    return [admin_pb2.TopicSelection(pattern=each.pattern, is_removed=each.is_removed) for each in given]


class SubscriberCall:
    """One call. Attributes: changes: the updates that came while an answer was awaited."""

    def __init__(self, channel: grpc.Channel, timeout_s: float = WAIT_S) -> None:
        self._requests: queue.SimpleQueue[admin_pb2.SubscriptionRequest | None] = queue.SimpleQueue()
        self.changes: deque[admin_pb2.SubscriptionUpdate] = deque()
        self._request_id = 0
        stub = admin_pb2_grpc.StreamAdministrationStub(channel)
        self.call = stub.Subscribe(iter(self._requests.get, None), timeout=timeout_s)

    def send(self, **request: object) -> int:
        """Send a request; return its id."""
        self._request_id += 1
        self._requests.put(admin_pb2.SubscriptionRequest(request_id=self._request_id, **request))  # type: ignore[arg-type]
        return self._request_id

    def ask(self, **request: object) -> admin_pb2.SubscriptionUpdate:
        """Send a request, and wait for its answer."""
        request_id = self.send(**request)
        for update in self.call:
            if update.request_id == request_id:
                if update.HasField("refused"):
                    raise RefusedRequest(update)
                return update
            self.changes.append(update)
        raise AssertionError("the call ended without an answer")

    def subscribe(
        self, *topics: TopicEntry | str, feed: str = "equities", subscription_id: int = 1, is_continued: bool = False
    ) -> admin_pb2.Grant:
        """Subscribe; a refusal raises."""
        subscribe = admin_pb2.SubscribeRequest(
            subscription_id=subscription_id, feed=feed, topics=selections(topics), is_continued=is_continued
        )
        return self.ask(subscribe=subscribe).grant

    def modify(self, *topics: TopicEntry | str, subscription_id: int = 1) -> admin_pb2.Grant:
        """Change a subscription; a refusal raises."""
        modify = admin_pb2.ModifyRequest(subscription_id=subscription_id, topics=selections(topics))
        return self.ask(modify=modify).grant

    def next(self) -> admin_pb2.SubscriptionUpdate:
        """The next change."""
        return self.changes.popleft() if self.changes else next(self.call)

    def close(self) -> None:
        """Leave."""
        self.call.cancel()
        self._requests.put(None)


def grants(
    channel: grpc.Channel, *topics: str, feed: str = "equities", timeout_s: float = WAIT_S
) -> Iterator[admin_pb2.Grant]:
    """The grants of a single subscription, until it is revoked; a refusal raises."""
    call = SubscriberCall(channel, timeout_s)
    try:
        yield call.subscribe(*topics, feed=feed)
        while True:
            update = call.next()
            if update.HasField("grant"):
                yield update.grant
            elif update.revoked.is_last:
                return
    finally:
        call.close()


def topics_of(grant: admin_pb2.Grant) -> list[str]:
    """The granted topics."""
    return [channel.topic for channel in grant.channels]


def keys_of(grant: admin_pb2.Grant) -> list[common_pb2.StreamKey]:
    """The keys of all channels."""
    return [key for channel in grant.channels for key in channel.keys]
