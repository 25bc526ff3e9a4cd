"""The feed's protocol settings from the admin server: known values configure the engine, others prevent the start."""

from __future__ import annotations

import pytest

from tandemfeed.adapter.feed_settings import FeedSettingsUnknown, engine_config
from tandemfeed.feedcore.lease.failing import FailConfig, FailPolicy
from tandemfeed.feedcore.lease.peers import ConsentConfig
from tandemfeed.feedcore.replica.config import OnSilence, PublishMode
from tandemfeed.v1 import admin_pb2, common_pb2


def registered(**protocol: object) -> admin_pb2.RegisterReply:
    settings = {"publish": "async", "on_silence": "proceed", "fail_policy": "lowest", **protocol}
    return admin_pb2.RegisterReply(
        feed=common_pb2.FeedDescription(
            feed_id=7,
            name="equities",
            session=20261121,
            channels=[common_pb2.ChannelDescription(channel_id=3, source_stream_ids=[1, 2])],
            datagram_size_max=1472,
        ),
        self=common_pb2.AdapterDescription(adapter_id=2),
        lease_ttl_ns=500_000_000,
        sync_interval_ns=80_000_000,
        protocol=admin_pb2.FeedProtocol(**settings),  # type: ignore[arg-type]
    )


def test_every_protocol_setting_reaches_the_engine() -> None:
    config = engine_config(
        registered(publish="acked", on_silence="hold", fail_policy="below_threshold", fail_threshold=0.5)
    )
    assert (config.feed_id, config.adapter_id, config.session, config.lease_ttl_ns) == (7, 2, 20261121, 500_000_000)
    assert config.channels[0].source_stream_ids == (1, 2)
    assert (config.replica.publish, config.replica.on_silence) == (PublishMode.ACKED, OnSilence.HOLD)
    assert (config.failing.policy, config.failing.threshold) == (FailPolicy.BELOW_THRESHOLD, 0.5)
    assert config.consent == ConsentConfig.of(80_000_000)


def test_without_a_protocol_from_the_server_the_defaults_apply() -> None:
    reply = registered()
    reply.ClearField("protocol")
    config = engine_config(reply)
    assert (config.replica.publish, config.replica.on_silence) == (PublishMode.ASYNC, OnSilence.PROCEED)
    assert config.failing == FailConfig()


@pytest.mark.parametrize(
    ("key", "value"), [("publish", "perhaps"), ("on_silence", ""), ("fail_policy", "highest"), ("fail_threshold", 1.5)]
)
def test_an_unknown_value_is_an_error_that_says_what_to_do(key: str, value: object) -> None:
    with pytest.raises(FeedSettingsUnknown) as unknown:
        engine_config(registered(**{key: value}))
    text = str(unknown.value)
    assert f"feed equities: {key} is {value!r};" in text
    assert "cluster file" in text
