"""Gateways of a real-time feed and its delayed twin, in the test's own process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tandemfeed.admin_server.records.authority import Authority
from tandemfeed.spark_feed.sending.gateway import GatewayOptions, SourceGateway
from tandemfeed.spark_feed.sending.pacing import RatePacer
from tandemfeed.spark_feed.sending.publication import Clock
from tandemfeed.transport.calls.server_names import source_gateway
from tandemfeed.transport.multicast.sockets import Multicast
from tandemfeed.v1 import common_pb2
from tests.spark_feed.source_material import FEED

SECOND = 1_000_000_000
DELAY_NS = 900 * SECOND
DELAYED_FEED_ID = 2
TOKEN_KEY = Ed25519PrivateKey.generate().public_key().public_bytes_raw()


class ManualClock:
    """The clock that measures age; it stands still unless the test moves it."""

    def __init__(self) -> None:
        self.now_ns = 5_000 * SECOND

    def __call__(self) -> int:
        return self.now_ns


def _description(feed_id: int, name: str, delay_ns: int) -> common_pb2.FeedDescription:
    return common_pb2.FeedDescription(
        feed_id=feed_id,
        name=name,
        session=FEED.session,
        source_streams=[
            common_pb2.SourceStreamDescription(
                source_stream_id=stream, name=str(stream), group=f"239.192.8.{stream}:{5_800 + 10 * feed_id + stream}"
            )
            for stream in FEED.source_stream_ids
        ],
        source_replay_endpoint="127.0.0.1:0",
        token_keys=[common_pb2.TokenKey(public_key=TOKEN_KEY)],
        delay_ns=delay_ns,
        delayed_from=FEED.name if delay_ns else "",
    )


REAL_TIME = _description(FEED.feed_id, FEED.name, 0)
DELAYED = _description(DELAYED_FEED_ID, "equities-delayed", DELAY_NS)


@contextmanager
def running_gateway(
    folder: Path, description: common_pb2.FeedDescription, clock: Clock, **options: Any
) -> Iterator[SourceGateway]:
    """A gateway that has started; nothing runs it but its own turns.

    Args:
        folder: for the certificate of all gateways.
        options: further ones of `GatewayOptions`, such as the journal.
    """
    certificate, key = folder / "source.crt", folder / "source.key"
    if not certificate.exists():
        names = [source_gateway(each.name) for each in (REAL_TIME, DELAYED)]
        Authority(folder).issue(certificate, key, "source", names)
    all_options = GatewayOptions(
        feed=description.name,
        rpc_listen="127.0.0.1:0",
        tls_certificate=certificate.read_bytes(),
        tls_key=key.read_bytes(),
        clock=clock,
        **options,
    )
    gateway = SourceGateway(all_options, description, Multicast(), lambda: RatePacer(50_000))
    gateway.start()
    try:
        yield gateway
    finally:
        gateway.close()
