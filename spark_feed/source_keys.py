"""The source keys of a feed, asked of the admin server at the start and again from time to time.

A key is told a day before the one in use ends, so an admin server may be away for hours without harm: the gateway goes
on with the key it has, and adapters open with it until it ends.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from tandemfeed.v1 import admin_pb2, admin_pb2_grpc, common_pb2
from transport.admin_servers import AdminServers, ask_active
from transport.login import AuthenticationRefused, TokenSource
from transport.process_shell import Connection
from transport.rpc import open_channel
from transport.source_sealing import SourceSealer

LOG = logging.getLogger(__name__)
ASK_TIMEOUT_S = 20.0
ASK_AGAIN_S = 60.0


@contextmanager
def sealing_with(connection: Connection, description: common_pb2.FeedDescription) -> Iterator[SourceSealer | None]:
    """A sealer whose key stays fresh meanwhile; None if the feed's source packets are not sealed.

    Raises:
        AuthenticationRefused, grpc.RpcError: the admin server gives no key.
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
    """Keeps a sealer's key fresh, in a thread of its own.

    Raises:
        AuthenticationRefused, grpc.RpcError: the first time of asking failed.
    """

    def __init__(self, connection: Connection, feed: str, sealer: SourceSealer) -> None:
        self._connection, self._feed, self._sealer = connection, feed, sealer
        self._servers = AdminServers(connection.admin)
        self._tokens = TokenSource(self._servers, connection.ca_pem, connection.identity, connection.secret)
        self._stopped = threading.Event()
        self._refresh()
        self._thread = threading.Thread(target=self._keep_fresh, name="source-keys", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ask no more."""
        self._stopped.set()
        self._thread.join()

    def _keep_fresh(self) -> None:
        while not self._stopped.wait(ASK_AGAIN_S):
            try:
                self._refresh()
            except (grpc.RpcError, AuthenticationRefused, OSError) as failed:
                LOG.warning("the source keys cannot be asked for; the last one stays", extra={"why": str(failed)[:300]})

    def _refresh(self) -> None:
        def ask(address: str, timeout_s: float) -> admin_pb2.SourceKeysReply:
            with open_channel(address, self._connection.ca_pem, self._tokens()) as channel:
                stub = admin_pb2_grpc.AdapterRegistryStub(channel)
                request = admin_pb2.SourceKeysRequest(feed=self._feed)
                return stub.GetSourceKeys(request, timeout=timeout_s, wait_for_ready=not self._servers.are_several)

        now_unix_ns = time.time_ns()
        for key in ask_active(self._servers, ask, ASK_TIMEOUT_S).keys:  # in the order in which they begin
            if key.not_before_unix_ns <= now_unix_ns < key.expires_unix_ns:
                self._sealer.use_key(key.key_id, key.key)
