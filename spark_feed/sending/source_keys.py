"""The source keys of a feed: fetched from the admin server at the start, and then with the answer to each report.

Adapters accept a replaced key for some seconds. While the admin server is away, no key is replaced, except on schedule,
which it announces a day ahead: the gateway keeps sealing with the key that it has.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from tandemfeed.transport.calls.admin_servers import AdminServers, ask_active
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.transport.calls.token_source import TokenSource
from tandemfeed.transport.process_shell import Connection
from tandemfeed.transport.sealing.source_sealing import SourceSealer
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc, common_pb2

FETCH_TIMEOUT_S = 20.0


def sealer_of(connection: Connection, description: common_pb2.FeedDescription) -> SourceSealer | None:
    """A sealer with the present key; None if the feed does not seal its source packets.

    Raises:
        AuthenticationRefused, grpc.RpcError: the key could not be fetched.
    """
    if not description.source_is_sealed:
        return None
    servers = AdminServers(connection.admin)
    tokens = TokenSource(servers, connection.ca_pem, connection.identity, connection.credential)

    def ask(address: str, timeout_s: float) -> admin_pb2.SourceKeysReply:
        with open_channel(address, connection.ca_pem, ADMIN_SERVER, tokens) as channel:
            stub = admin_pb2_grpc.AdapterRegistryStub(channel)
            request = admin_pb2.SourceKeysRequest(feed=description.name)
            return stub.GetSourceKeys(request, timeout=timeout_s, wait_for_ready=not servers.are_several)

    sealer = SourceSealer(description.feed_id)
    use_present_key(sealer, ask_active(servers, ask, FETCH_TIMEOUT_S).keys)
    return sealer


def use_present_key(sealer: SourceSealer, keys: Iterable[common_pb2.StreamKey]) -> None:
    """Seal with the newest key that has begun. Args: keys: in the order in which they begin."""
    now_unix_ns = time.time_ns()
    for key in keys:
        if key.not_before_unix_ns <= now_unix_ns < key.expires_unix_ns:
            sealer.use_key(key.key_id, key.key)
