"""The core of one client's call: its requests and the changes of feeds go in, updates come out.

The shell calls `take_update` when the client can receive one, so an update has the state of that moment, and only the
fact that a subscription has changed waits for a slow client. Whatever happens, the following holds:

- no update has a key of a channel that the policy did not grant after the key was read;
- every request is answered once, in the order of the requests;
- a revocation comes before anything that was made after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tandemfeed.admin_server.feed.streams import Subscriber
from tandemfeed.admin_server.policy.limits import OpenSubscriptions
from tandemfeed.admin_server.policy.rules import NOTHING, Extent
from tandemfeed.admin_server.policy.subscription_rights import NotGranted, part_of, shown_topics
from tandemfeed.admin_server.settings import FeedSettings
from tandemfeed.admin_server.subscriptions.refusals import (
    Refused,
    not_granted,
    one_too_many,
    request_refused,
    unusable,
)
from tandemfeed.admin_server.subscriptions.selection import Selection, SelectionRefused
from tandemfeed.feedcore.topics import EVERY_TOPIC, TopicEntry
from tandemfeed.transport.calls.tokens import Caller, TokenRefused
from tandemfeed.transport.unicast.wire import CURVE_KEY_SIZE
from tandemfeed.v1 import admin_pb2

SUBSCRIPTIONS_PER_CALL_MAX = 256
REQUESTS_WAITING_MAX = 16  # beyond this the shell reads no further request until one is answered


class GrantingFeed(Protocol):
    """A feed that a client may subscribe to."""

    feed: FeedSettings

    @property
    def topics(self) -> Mapping[str, int]:
        """The channel_id of each topic."""
        ...

    def grant(self, extents: Mapping[int, Extent]) -> admin_pb2.Grant:
        """The present grant of these channels, by channel_id, with all documents."""
        ...

    def subscribe(self, subscriber: Subscriber) -> None:
        """Notify the shell of changes."""
        ...

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Notify it no longer."""
        ...


@dataclass(frozen=True, slots=True)
class Outgoing:
    """An update to send. What `event` and `fields` say must be recorded before. `refused`: the request was."""

    update: admin_pb2.SubscriptionUpdate
    event: str
    fields: dict[str, object] = field(default_factory=dict)
    refused: Refused | None = None


@dataclass(slots=True)
class ClientSubscription:
    """One subscription of the call.

    Attributes:
        unicast_key: the CURVE public key with which the client may connect to adapters; empty: it has none.
        granted: how much the client may use of each channel, by topic, as it was last sent.
        sent: the grant as it was last sent, without documents.
    """

    feed_name: str
    feed: GrantingFeed
    selection: Selection
    granted: Mapping[str, Extent]
    unicast_key: bytes = b""
    sent: bytes = field(default=b"", repr=False)


class ClientSession:
    """One client's call. Not safe for several threads at once.

    Args:
        caller: the client, as its token says.
        feeds: the feeds of this server, by name.
        extent: how much of a channel, by its topic, the policy in force grants the client now.
        open_subscriptions: of all calls, by identity.
        count_max: how many the client may have open; None: no limit of its own.
        verify: the caller that a bearer names; raises TokenRefused.

    Attributes:
        caller: renewed by a request; its token's end is the end of the call.
        subscriptions: by subscription_id.
    """

    def __init__(
        self,
        caller: Caller,
        feeds: Mapping[str, GrantingFeed],
        extent: Callable[[str], Extent],
        open_subscriptions: OpenSubscriptions,
        count_max: Callable[[], int | None],
        verify: Callable[[str], Caller],
    ) -> None:
        self.caller = caller
        self.subscriptions: dict[int, ClientSubscription] = {}
        self._feeds, self._extent = feeds, extent
        self._open, self._count_max, self._verify = open_subscriptions, count_max, verify
        self._requests: deque[admin_pb2.SubscriptionRequest] = deque()
        self._changed: dict[int, None] = {}  # the subscription_ids whose grant may differ from the one sent, in order
        self._sent_documents: set[str] = set()

    @property
    def is_full(self) -> bool:
        """Whether enough requests wait."""
        return len(self._requests) >= REQUESTS_WAITING_MAX

    def extents_of(self, subscription_id: int) -> dict[int, Extent]:
        """What a subscription was sent and the policy still grants, by channel_id."""
        subscription = self.subscriptions[subscription_id]
        left = {topic: part & self._extent(topic) for topic, part in subscription.granted.items()}
        return {subscription.feed.topics[topic]: part for topic, part in left.items() if part}

    # ---- events ----

    def on_request(self, request: admin_pb2.SubscriptionRequest) -> None:
        """The client sent a request."""
        self._requests.append(request)

    def on_change(self, subscription_id: int) -> None:
        """The subscription's feed, or the policy, has changed."""
        if subscription_id in self.subscriptions:
            self._changed[subscription_id] = None

    def on_end(self) -> None:
        """The call has ended."""
        for subscription_id in list(self.subscriptions):
            self._end(subscription_id)

    # ---- updates ----

    def take_update(self) -> Outgoing | None:
        """The next update, with the state of this moment; None: there is nothing to send now."""
        while self._changed:
            subscription_id = next(iter(self._changed))
            if (change := self._take_change(subscription_id)) is not None:
                return change
            self._changed.pop(subscription_id, None)
        return self._take_answer() if self._requests else None

    def _take_change(self, subscription_id: int) -> Outgoing | None:
        """What has changed since the last update of a subscription."""
        subscription = self.subscriptions[subscription_id]
        granted, grant = self._grant_now(subscription.feed, subscription.selection)
        if (revoked := self._revocation(subscription_id, granted)) is not None:
            return revoked
        if _compared(grant) == subscription.sent:
            return None
        known = subscription.granted
        gained = [topic for topic, part in granted.items() if topic not in known or not known[topic].covers(part)]
        update = self._granting(subscription_id, subscription, granted, grant)
        return self._outgoing(
            update, "subscription extended" if gained else "", feed=subscription.feed_name, topics=sorted(gained)
        )

    def _revocation(self, subscription_id: int, granted: Mapping[str, Extent]) -> Outgoing | None:
        """The notice of the topics that the client has, and is no longer granted; if it has lost all, the end."""
        subscription = self.subscriptions[subscription_id]
        lost = sorted(_lost_topics(subscription.granted, granted))
        if not lost:
            return None
        left = {topic: part & granted.get(topic, NOTHING) for topic, part in subscription.granted.items()}
        subscription.granted = {topic: part for topic, part in left.items() if part}
        is_last = not granted
        if is_last:
            self._end(subscription_id)
        names = ", ".join(repr(topic) for topic in lost)
        reason = f"{names} in feed {subscription.feed_name!r} is no longer granted to {self.caller.identity}"
        revoked = admin_pb2.TopicsRevoked(topics=lost, reason=reason, is_last=is_last)
        update = admin_pb2.SubscriptionUpdate(subscription_id=subscription_id, revoked=revoked)
        return self._outgoing(update, "subscription revoked", feed=subscription.feed_name, topics=lost)

    # ---- answers ----

    def _take_answer(self) -> Outgoing:
        request = self._requests[0]
        try:
            match request.WhichOneof("request"):
                case "subscribe":
                    answer = self._subscribe(request.subscribe)
                case "modify":
                    if (revoked := self._pending_revocation(request.modify.subscription_id)) is not None:
                        return revoked  # first; the request is answered after it
                    answer = self._modify(request.modify)
                case "cancel":
                    answer = self._cancel(request.cancel.subscription_id)
                case "renew":
                    answer = self._renew(request.renew.bearer)
                case _:
                    raise unusable("the request is of no kind that this server knows; use this server's version")
        except Refused as refused:
            answer = Outgoing(request_refused(refused), "subscription refused", refused=refused)
        self._requests.popleft()
        answer.update.request_id = request.request_id
        return answer

    def _subscribe(self, request: admin_pb2.SubscribeRequest) -> Outgoing:
        subscription_id = request.subscription_id
        name = request.feed or self._feed_with(_entries(request.topics) or (EVERY_TOPIC,))
        if subscription_id == 0 or subscription_id in self.subscriptions:
            raise unusable(f"subscription_id is {subscription_id}; it must not be 0 or in use in this call", feed=name)
        if len(request.unicast_client_key) not in (0, CURVE_KEY_SIZE):
            found = len(request.unicast_client_key)
            raise unusable(f"unicast_client_key has {found} bytes, expected {CURVE_KEY_SIZE}, or none", feed=name)
        feed = self._feeds.get(name)
        if feed is None or not (available := self._available(feed)):
            seen = [each for each, known in self._feeds.items() if self._available(known)]
            raise not_granted(f"the feed {name!r}", self.caller.identity, seen, feed=name)
        entries = _entries(request.topics) or (EVERY_TOPIC,)
        selection = self._select(feed, Selection(), entries, available, is_strict=not request.is_continued)
        granted, grant = self._grant_now(feed, selection)
        if not granted:
            what = f"what is selected in feed {name!r}"
            raise not_granted(what, self.caller.identity, shown_topics(available), feed=name)
        self._begin(name)
        subscription = self.subscriptions[subscription_id] = ClientSubscription(
            name, feed, selection, granted, request.unicast_client_key
        )
        update = self._granting(subscription_id, subscription, granted, grant)
        return self._outgoing(update, "subscribed", feed=name, channels=self._channels(feed, granted))

    def _modify(self, request: admin_pb2.ModifyRequest) -> Outgoing:
        subscription = self._known(request.subscription_id)
        available = self._available(subscription.feed)
        entries = _entries(request.topics)
        selection = self._select(subscription.feed, subscription.selection, entries, available, is_strict=True)
        granted, grant = self._grant_now(subscription.feed, selection)
        if not granted:
            raise unusable("nothing would be left of the subscription; cancel it instead", feed=subscription.feed_name)
        subscription.selection = selection
        update = self._granting(request.subscription_id, subscription, granted, grant)
        channels = self._channels(subscription.feed, granted)
        return self._outgoing(update, "subscription modified", feed=subscription.feed_name, channels=channels)

    def _cancel(self, subscription_id: int) -> Outgoing:
        subscription = self._known(subscription_id)
        self._end(subscription_id)
        cancelled = admin_pb2.SubscriptionCancelled()
        update = admin_pb2.SubscriptionUpdate(subscription_id=subscription_id, cancelled=cancelled)
        return self._outgoing(update, "subscription cancelled", feed=subscription.feed_name)

    def _renew(self, bearer: str) -> Outgoing:
        try:
            renewed = self._verify(bearer)
        except TokenRefused as refused:
            raise unusable(f"token refused: {refused}; authenticate again") from None
        if renewed.identity != self.caller.identity:
            raise unusable(f"the token is of another identity than {self.caller.identity}, which made this call")
        self.caller = renewed
        login = admin_pb2.LoginRenewed(expires_unix_ns=renewed.expires_unix_ns)
        return self._outgoing(admin_pb2.SubscriptionUpdate(renewed=login), "")

    # ---- inside ----

    def _pending_revocation(self, subscription_id: int) -> Outgoing | None:
        subscription = self.subscriptions.get(subscription_id)
        if subscription is None:
            return None
        return self._revocation(subscription_id, self._selected(subscription.feed, subscription.selection))

    def _feed_with(self, entries: tuple[TopicEntry, ...]) -> str:
        """The one feed that has the topics of a request that names none; "" if no feed has."""
        found = [
            name
            for name, feed in self._feeds.items()
            if (available := self._available(feed))
            and any(not entry.is_removed and _is_granted(entry.pattern, feed, available) for entry in entries)
        ]
        if len(found) > 1:
            raise unusable(f"the topics are in the feeds {', '.join(map(repr, found))}; name one of them", feed="")
        if not found:
            what = f"the topic {entries[0].pattern!r}"
            topics = [topic for feed in self._feeds.values() for topic in shown_topics(self._available(feed))]
            raise not_granted(what, self.caller.identity, topics, feed="")
        return found[0]

    def _available(self, feed: GrantingFeed) -> dict[str, Extent]:
        """What the policy grants of a feed, by topic."""
        extents = {topic: self._extent(topic) for topic in feed.topics}
        return {topic: part for topic, part in extents.items() if part}

    def _selected(self, feed: GrantingFeed, selection: Selection) -> dict[str, Extent]:
        """What the policy grants of a selection, by topic."""
        parts = {topic: part & selection.extent(topic) for topic, part in self._available(feed).items()}
        return {topic: part for topic, part in parts.items() if part}

    @staticmethod
    def _channels(feed: GrantingFeed, granted: Mapping[str, Extent]) -> list[int]:
        return sorted(feed.topics[topic] for topic in granted)

    def _select(
        self,
        feed: GrantingFeed,
        selection: Selection,
        entries: tuple[TopicEntry, ...],
        available: Mapping[str, Extent],
        *,
        is_strict: bool,
    ) -> Selection:
        """The selection with further entries. Args: is_strict: each that adds topics must cover a granted one."""
        try:
            result = selection.extended(entries)
            for entry in entries if is_strict else ():
                if not (entry.is_removed or _is_granted(entry.pattern, feed, available)):
                    what, shown = f"the topic {entry.pattern!r} in feed {feed.feed.name!r}", shown_topics(available)
                    raise not_granted(what, self.caller.identity, shown, feed=feed.feed.name, topic=entry.pattern)
            for topic in feed.topics:
                result.extent(topic)
        except SelectionRefused as refused:
            raise unusable(str(refused), feed=feed.feed.name) from None
        return result

    def _grant_now(self, feed: GrantingFeed, selection: Selection) -> tuple[dict[str, Extent], admin_pb2.Grant]:
        """What the policy grants of a selection, and the grant of just that.

        The policy is asked again after the keys were read: it changes before keys are replaced, so keys that were made
        after a revocation are seen together with the revocation, and the grant is made anew.
        """
        while True:
            granted = self._selected(feed, selection)
            grant = feed.grant({feed.topics[topic]: part for topic, part in granted.items()})
            if all(self._extent(topic).covers(part) for topic, part in granted.items()):
                return granted, grant

    def _granting(
        self,
        subscription_id: int,
        subscription: ClientSubscription,
        granted: Mapping[str, Extent],
        grant: admin_pb2.Grant,
    ) -> admin_pb2.SubscriptionUpdate:
        subscription.granted, subscription.sent = granted, _compared(grant)
        documents = [each for each in grant.documents if each.version.version not in self._sent_documents]
        self._sent_documents.update(each.version.version for each in documents)
        del grant.documents[:]
        grant.documents.extend(documents)
        return admin_pb2.SubscriptionUpdate(subscription_id=subscription_id, grant=grant)

    def _known(self, subscription_id: int) -> ClientSubscription:
        subscription = self.subscriptions.get(subscription_id)
        if subscription is None:
            raise unusable(f"this call has no subscription {subscription_id}; it may have ended by a revocation")
        return subscription

    def _begin(self, feed: str) -> None:
        """Count one more subscription, or refuse it."""
        identity, limit = self.caller.identity, self._count_max()
        if len(self.subscriptions) >= SUBSCRIPTIONS_PER_CALL_MAX:
            text = f"this call has {SUBSCRIPTIONS_PER_CALL_MAX} subscriptions, which is the limit; end one first"
            raise one_too_many(text, feed=feed)
        if not self._open.begin(identity, limit):
            text = f"{identity} has {limit} subscriptions open, which is subscription_count_max in the policy"
            raise one_too_many(f"{text}; end one first", feed=feed)

    def _end(self, subscription_id: int) -> None:
        del self.subscriptions[subscription_id]
        self._changed.pop(subscription_id, None)
        self._open.end(self.caller.identity)

    def _outgoing(self, update: admin_pb2.SubscriptionUpdate, event: str, **fields: object) -> Outgoing:
        return Outgoing(update, event, {"feed": fields.pop("feed", ""), "identity": self.caller.identity, **fields})


def _is_granted(pattern: str, feed: GrantingFeed, available: Mapping[str, Extent]) -> bool:
    """Whether a pattern covers something granted; the topic of a channel or of its symbols, whether all of that is."""
    try:
        topic, part = part_of(pattern, feed.feed)
    except NotGranted:
        alone = Selection().extended([TopicEntry(pattern)])
        return any(alone.extent(each) & granted for each, granted in available.items())
    return available.get(topic, NOTHING).covers(part)


def _lost_topics(former: Mapping[str, Extent], now: Mapping[str, Extent]) -> Iterator[str]:
    """The topics of the channels and symbols that are granted no longer."""
    for topic, part in former.items():
        left = now.get(topic, NOTHING)
        if not left or (part.symbols is None and left.symbols is not None):
            yield topic
        elif not left.covers(part):
            yield from (f"{topic}.{word}" for word in (part.symbols or frozenset()) - (left.symbols or frozenset()))


def _entries(topics: Iterable[admin_pb2.TopicSelection]) -> tuple[TopicEntry, ...]:
    return tuple(TopicEntry(each.pattern, each.is_removed) for each in topics)


def _compared(grant: admin_pb2.Grant) -> bytes:
    """A grant without its documents' content, for comparison: each channel names the versions."""
    bare = admin_pb2.Grant()
    bare.CopyFrom(grant)
    del bare.documents[:]
    return bare.SerializeToString(deterministic=True)
