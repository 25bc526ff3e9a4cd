"""The core of a client's call to the administration server, for all its subscriptions: what to request, and which
subscription an update concerns. Sans-I/O, and not safe for several threads at once.

Invariant: after each new call, every subscription that the application has not cancelled is requested again, with what
the application asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tandemfeed.client_lib.errors import ClientError, LimitReached, refusal_error
from tandemfeed.client_lib.login.grant import Grant, TopicsRevoked, read_grant
from tandemfeed.feedcore.topics import EVERY_TOPIC, TopicEntry, extended
from tandemfeed.v1 import admin_pb2


@dataclass(slots=True)
class StandingRequest:
    """What the application asks for in one subscription.

    Attributes:
        unicast_key: the public key with which it connects to adapters; empty: it receives by multicast only.
        granted: what it was last granted.
    """

    feed: str
    selection: tuple[TopicEntry, ...]
    unicast_key: bytes = b""
    granted: Grant | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """A request of the application was answered: accepted if there is no error."""

    request_id: int
    error: ClientError | None = None


@dataclass(frozen=True, slots=True)
class Granted:
    """A subscription's grant, whole."""

    subscription_id: int
    grant: Grant


@dataclass(frozen=True, slots=True)
class Lost:
    """A subscription lost topics, and is over if the letter says so. `error`: why it was rejected as a whole."""

    subscription_id: int
    revoked: TopicsRevoked
    error: ClientError | None = None


@dataclass(frozen=True, slots=True)
class CallAgain:
    """The server cannot continue a subscription now: a new call is to be made later."""

    error: ClientError


Outcome = Answered | Granted | Lost | CallAgain


@dataclass(slots=True)
class _Pending:
    subscription_id: int
    entries: tuple[TopicEntry, ...] = ()  # of a ModifyRequest


class CallCore:
    """Attributes: requests: the present subscriptions by id."""

    def __init__(self) -> None:
        self.requests: dict[int, StandingRequest] = {}
        self._pending: dict[int, _Pending] = {}  # by request_id: those of the present call
        self._last_id = 0
        self._documents: dict[str, bytes] = {}

    # ---- the application ----

    def subscribe(
        self, feed: str, entries: Iterable[TopicEntry], unicast_key: bytes = b""
    ) -> tuple[int, admin_pb2.SubscriptionRequest]:
        """Add a subscription; return its id and the request for it."""
        subscription_id = self._next_id()
        self.requests[subscription_id] = StandingRequest(feed, extended((), entries), unicast_key)
        return subscription_id, self._subscribing(subscription_id)

    def modify(self, subscription_id: int, entries: Iterable[TopicEntry]) -> admin_pb2.SubscriptionRequest:
        """The request that changes a present subscription, which changes when it is accepted."""
        assert subscription_id in self.requests
        added = tuple(entries)
        message = admin_pb2.ModifyRequest(subscription_id=subscription_id, topics=_topics(added))
        return self._requesting(_Pending(subscription_id, added), modify=message)

    def cancel(self, subscription_id: int) -> admin_pb2.SubscriptionRequest | None:
        """End a subscription; the request for it, unless the server has ended it."""
        if self.requests.pop(subscription_id, None) is None:
            return None
        message = admin_pb2.CancelRequest(subscription_id=subscription_id)
        return self._requesting(_Pending(subscription_id), cancel=message)

    def renew(self, bearer: str) -> admin_pb2.SubscriptionRequest:
        """The request that prolongs the call."""
        return self._requesting(_Pending(0), renew=admin_pb2.RenewRequest(bearer=bearer))

    # ---- the call ----

    def on_call(self) -> list[admin_pb2.SubscriptionRequest]:
        """A new call begins: request everything again."""
        self._pending.clear()
        self._documents.clear()
        return [self._subscribing(subscription_id) for subscription_id in self.requests]

    def on_update(self, update: admin_pb2.SubscriptionUpdate) -> list[Outcome]:
        """What an update means, in order."""
        pending = self._pending.pop(update.request_id, None)
        answered = [Answered(update.request_id)] if pending is not None else []
        request = self.requests.get(update.subscription_id)
        match update.WhichOneof("update"):
            case "grant" if request is not None:
                if pending is not None and pending.entries:
                    request.selection = extended(request.selection or (EVERY_TOPIC,), pending.entries)
                is_continued = pending is not None and not pending.entries
                granted = self._on_grant(update.subscription_id, request, update.grant, is_continued=is_continued)
                return [*granted, *answered]
            case "revoked" if request is not None:
                revoked = TopicsRevoked(tuple(update.revoked.topics), update.revoked.reason, update.revoked.is_last)
                if revoked.is_last:
                    del self.requests[update.subscription_id]
                return [Lost(update.subscription_id, revoked)]
            case "refused" if pending is not None:
                return self._on_refused(update, pending)
        return [*answered]  # of a subscription that the application has cancelled meanwhile, or a kind without content

    def on_rejected(self, subscription_id: int, error: ClientError) -> list[Outcome]:
        """The server does not accept this client any more: the subscription is over."""
        request = self.requests.pop(subscription_id, None)
        if request is None:
            return []
        topics = () if request.granted is None else tuple(sorted(request.granted.topics))
        return [Lost(subscription_id, TopicsRevoked(topics, str(error), is_last=True), error)]

    # ---- inside ----

    def _on_grant(
        self, subscription_id: int, request: StandingRequest, message: admin_pb2.Grant, *, is_continued: bool
    ) -> list[Outcome]:
        """Args: is_continued: the answer in a new call, which does not say what was lost between the calls."""
        self._documents.update({each.version.version: each.content for each in message.documents})
        former, grant = request.granted, read_grant(message, self._documents, request.granted)
        request.granted, request.feed = grant, grant.feed_name  # the server chose it if the application named none
        granted = Granted(subscription_id, grant)
        lost = () if former is None else sorted(former.topics - grant.topics)
        if not (is_continued and lost):
            return [granted]
        reason = f"{', '.join(map(repr, lost))} in feed {request.feed!r} is no longer granted"
        return [Lost(subscription_id, TopicsRevoked(tuple(lost), reason, is_last=False)), granted]

    def _on_refused(self, update: admin_pb2.SubscriptionUpdate, pending: _Pending) -> list[Outcome]:
        request = self.requests.get(pending.subscription_id)
        topics = () if request is None else tuple(entry.pattern for entry in request.selection)
        error = refusal_error(update.refused, topics)
        answered = Answered(update.request_id, error)
        if request is None or pending.entries:
            return [answered]
        if request.granted is not None and isinstance(error, LimitReached):  # by the former call, for a short time
            return [CallAgain(error)]
        # A subscription that is continued in a new call is refused when nothing of it is granted any more.
        return [answered, *self.on_rejected(pending.subscription_id, error)]

    def _subscribing(self, subscription_id: int) -> admin_pb2.SubscriptionRequest:
        request = self.requests[subscription_id]
        message = admin_pb2.SubscribeRequest(
            subscription_id=subscription_id,
            feed=request.feed,
            topics=_topics(request.selection),
            is_continued=request.granted is not None,
            unicast_client_key=request.unicast_key,
        )
        return self._requesting(_Pending(subscription_id), subscribe=message)

    def _requesting(self, pending: _Pending, **request: object) -> admin_pb2.SubscriptionRequest:
        request_id = self._next_id()
        self._pending[request_id] = pending
        return admin_pb2.SubscriptionRequest(request_id=request_id, **request)  # type: ignore[arg-type]  # of the oneof

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id


def _topics(entries: Iterable[TopicEntry]) -> list[admin_pb2.TopicSelection]:
    return [admin_pb2.TopicSelection(pattern=each.pattern, is_removed=each.is_removed) for each in entries]
