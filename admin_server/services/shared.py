"""What several services use: finding what a request names, and refusing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

import grpc

from tandemfeed.admin_server.feed.broker import FeedBroker
from tandemfeed.admin_server.feed.feed_state import OperationRefused
from tandemfeed.admin_server.records.lease_records import RecordsUnavailable
from tandemfeed.admin_server.settings import AdapterSettings
from tandemfeed.transport.calls.serving.call_context import caller_of


def find_feed(brokers: Mapping[str, FeedBroker], name: str, context: grpc.ServicerContext) -> FeedBroker:
    """The feed that an adapter or a source names. Each sees only its own."""
    caller = caller_of(context)
    seen = [
        known
        for known, each in brokers.items()
        if each.feed.has_source(caller.identity, caller.roles) or caller.is_adapter_of(known)
    ]
    if name not in seen:
        abort_unknown_feed(name, seen, context)
    return brokers[name]


def abort_unknown_feed(name: str, seen: Iterable[str], context: grpc.ServicerContext) -> NoReturn:
    """End the call with NOT_FOUND, which names the feeds that the caller may see."""
    context.abort(grpc.StatusCode.NOT_FOUND, f"no feed {name!r}; available to you: {listed(seen)}")


def listed(names: Iterable[str]) -> str:
    """Names for a text."""
    return ", ".join(sorted(names)) or "none"


def find_adapter(broker: FeedBroker, name: str, context: grpc.ServicerContext) -> AdapterSettings:
    """A feed's adapter by its name."""
    adapter = next((adapter for adapter in broker.feed.adapters if adapter.name == name), None)
    if adapter is None:
        names = ", ".join(adapter.name for adapter in broker.feed.adapters)
        context.abort(grpc.StatusCode.NOT_FOUND, f"feed {broker.feed.name!r} has no adapter {name!r}; it has {names}")
    return adapter


@contextmanager
def refusing(context: grpc.ServicerContext) -> Iterator[None]:
    """Report a refused operation to the caller."""
    try:
        yield
    except OperationRefused as refused:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(refused))
    except RecordsUnavailable as failed:
        context.abort(grpc.StatusCode.UNAVAILABLE, f"not done, because it could not be recorded: {failed}")
