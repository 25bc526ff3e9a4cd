"""From what the admin server says at registration to what the engine is made with: the feed, its times, its protocol.

The words of `FeedProtocol` are the admin server's settings; one that this adapter does not know ends its start, because
two adapters of a feed that behave differently are worse than one adapter less.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

from feedcore.lease.failing import FailConfig, FailPolicy
from feedcore.lease.peers import ConsentConfig
from feedcore.replica.config import SESSION_GRACE_NS, OnSilence, PublishMode, ReplicaConfig, SessionState
from feedcore.replica.engine import ChannelConfig, EngineConfig
from tandemfeed.v1 import admin_pb2

Word = TypeVar("Word", bound=Enum)


class FeedSettingsUnknown(ValueError):
    """The admin server asks for a behaviour that this adapter does not have; the text says which, and what to do."""


def engine_config(
    registered: admin_pb2.RegisterReply, *, session: int = 0, former_life_ended_ns: int | None = None
) -> EngineConfig:
    """The engine's configuration.

    Args:
        session: to begin in; 0: the one that the admin server describes.
        former_life_ended_ns: as in `EngineConfig`.

    Raises:
        FeedSettingsUnknown: a word of the feed's protocol, or a threshold, that cannot be used.
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
        former_life_ended_ns=former_life_ended_ns,
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
            f"feed {feed}: fail_threshold = {protocol.fail_threshold}: a health score is within 0 and 1; "
            "correct it in the admin server's cluster file"
        )
    return FailConfig(policy, protocol.fail_threshold)


def _known(words: type[Word], word: str, key: str, feed: str) -> Word:
    try:
        return words(word)
    except ValueError:
        known = ", ".join(repr(each.value) for each in words)
        raise FeedSettingsUnknown(
            f"feed {feed}: {key} = {word!r} is not known to this adapter, which knows {known}; correct the admin "
            "server's cluster file, or run admin server and adapters of one version"
        ) from None
