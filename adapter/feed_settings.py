"""Makes the engine's configuration from the admin server's reply to the registration.

The values in `FeedProtocol` are the admin server's settings. An adapter that does not know a value refuses to start,
because two adapters of a feed that behave differently are worse than one adapter fewer.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

from tandemfeed.feedcore.lease.failing import FailConfig, FailPolicy
from tandemfeed.feedcore.lease.peers import ConsentConfig
from tandemfeed.feedcore.replica.config import (
    SESSION_GRACE_NS,
    ChannelConfig,
    EngineConfig,
    OnSilence,
    PublishMode,
    ReplicaConfig,
    SessionState,
)
from tandemfeed.v1 import admin_pb2

Word = TypeVar("Word", bound=Enum)


class FeedSettingsUnknown(ValueError):
    """The feed's settings have a value that this adapter cannot use; the text says which, and what to do."""


def engine_config(
    registered: admin_pb2.RegisterReply, *, session: int = 0, previous_process_ended_ns: int | None = None
) -> EngineConfig:
    """The engine's configuration.

    Args:
        session: the session to start in; 0: the one that the admin server gives.
        previous_process_ended_ns: as in `EngineConfig`.

    Raises:
        FeedSettingsUnknown: this adapter cannot use a setting of the feed.
    """
    feed = registered.feed
    protocol = registered.protocol if registered.HasField("protocol") else None
    return EngineConfig(
        feed.feed_id,
        registered.self.adapter_id,
        session or feed.session,
        tuple(ChannelConfig(each.channel_id, tuple(each.source_stream_ids)) for each in feed.channels),
        feed.datagram_size_max,
        registered.lease_ttl_ns,
        ReplicaConfig() if protocol is None else _replica_config(protocol, feed.name),
        ConsentConfig.of(registered.sync_interval_ns),
        FailConfig() if protocol is None else _fail_config(protocol, feed.name),
        previous_process_ended_ns=previous_process_ended_ns,
        session_state=SessionState.RESET
        if protocol is None or not protocol.session_state
        else _known(SessionState, protocol.session_state, "session_state", feed.name),
        session_grace_ns=(protocol.session_grace_ns if protocol is not None else 0) or SESSION_GRACE_NS,
    )


def _replica_config(protocol: admin_pb2.FeedProtocol, feed: str) -> ReplicaConfig:
    return ReplicaConfig(
        publish=_known(PublishMode, protocol.publish, "publish", feed),
        on_silence=_known(OnSilence, protocol.on_silence, "on_silence", feed),
    )


def _fail_config(protocol: admin_pb2.FeedProtocol, feed: str) -> FailConfig:
    policy = _known(FailPolicy, protocol.fail_policy, "fail_policy", feed)
    if not 0 <= protocol.fail_threshold <= 1:
        raise FeedSettingsUnknown(
            f"feed {feed}: fail_threshold is {protocol.fail_threshold}; it must be from 0 to 1; "
            "correct it in the admin server's cluster file"
        )
    return FailConfig(policy, protocol.fail_threshold)


def _known(words: type[Word], word: str, key: str, feed: str) -> Word:
    try:
        return words(word)
    except ValueError:
        known = ", ".join(repr(each.value) for each in words)
        raise FeedSettingsUnknown(
            f"feed {feed}: {key} is {word!r}; this adapter knows {known}; correct the admin server's cluster file, "
            "or run the admin server and the adapters in the same version"
        ) from None
