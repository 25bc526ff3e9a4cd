"""The source keys of a feed, fetched from the admin server at the start and then every minute.

The admin server announces a key a day before the current one expires. So it may be away for hours without harm: the
gateway keeps sealing with the key it has, and adapters accept that key until it expires.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from tandemfeed.transport.calls.admin_servers import AdminServers, ask_active
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.login import AuthenticationRefused, TokenSource
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.transport.process_shell import Connection
from tandemfeed.transport.sealing.source_sealing import SourceSealer
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc, common_pb2

LOG = logging.getLogger(__name__)
FETCH_TIMEOUT_S = 20.0
REFRESH_INTERVAL_S = 60.0


@contextmanager
def sealing_with(connection: Connection, description: common_pb2.FeedDescription) -> Iterator[SourceSealer | None]:
    """A sealer whose key is kept current; None if the feed does not seal its source packets.

    Raises:
        AuthenticationRefused, grpc.RpcError: the first key could not be fetched.
    """
    if not description.source_is_sealed:
        yield None
        return
    sealer = SourceSealer(description.feed_id)
    keys = SourceKeys(connection, description.name, sealer)
    try:
        yield sealer
    finally:
        keys.close()


class SourceKeys:
    """Keeps the key of a sealer current, in its own thread.

    Raises:
        AuthenticationRefused, grpc.RpcError: the first key could not be fetched.
    """

    def __init__(self, connection: Connection, feed: str, sealer: SourceSealer) -> None:
        self._connection, self._feed, self._sealer = connection, feed, sealer
        self._servers = AdminServers(connection.admin)
        self._tokens = TokenSource(self._servers, connection.ca_pem, connection.identity, connection.credential)
        self._stopped = threading.Event()
        self._refresh()
        self._thread = threading.Thread(target=self._keep_current, name="source-keys", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop fetching."""
        self._stopped.set()
        self._thread.join()

    def _keep_current(self) -> None:
        while not self._stopped.wait(REFRESH_INTERVAL_S):
            try:
                self._refresh()
            except (grpc.RpcError, AuthenticationRefused, OSError) as failed:
                self._tokens.renew()  # in case it was revoked
                LOG.warning("could not fetch the source keys; keeping the last one", extra={"why": str(failed)[:300]})

    def _refresh(self) -> None:
        def ask(address: str, timeout_s: float) -> admin_pb2.SourceKeysReply:
            with open_channel(address, self._connection.ca_pem, ADMIN_SERVER, self._tokens) as channel:
                stub = admin_pb2_grpc.AdapterRegistryStub(channel)
                request = admin_pb2.SourceKeysRequest(feed=self._feed)
                return stub.GetSourceKeys(request, timeout=timeout_s, wait_for_ready=not self._servers.are_several)

        now_unix_ns = time.time_ns()
        for key in ask_active(self._servers, ask, FETCH_TIMEOUT_S).keys:  # in order of start
            if key.not_before_unix_ns <= now_unix_ns < key.expires_unix_ns:
                self._sealer.use_key(key.key_id, key.key)
