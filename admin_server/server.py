"""The server put together: settings, private folder, store, brokers, services."""

from __future__ import annotations

from pathlib import Path

from admin_server.audit import AuditLog
from admin_server.authentication import AuthenticationService
from admin_server.broker import FeedBroker
from admin_server.services import (
    PUBLIC_SERVICES,
    ROLES_BY_SERVICE,
    AdapterRegistryService,
    OperationsService,
    StreamAdministrationService,
)
from admin_server.settings import load_cluster, load_policy
from admin_server.state_folder import StateFolder
from admin_server.store import Store
from tandemfeed.v1 import admin_pb2_grpc
from transport.rpc import AuthorizationInterceptor, RpcServer, TokenVerifier, serve

THREAD_COUNT = 256  # each attending adapter and each subscriber holds one for its stream's life


class AdminServer:
    """A running stream administration server.

    Args:
        cluster, policy: the two settings files.
        state: the private folder, made if it does not exist.
        listen: host:port; port 0 takes a free one.

    Raises:
        SettingsError: a settings file cannot be used.
        OSError: the address or the folder cannot be used.
    """

    def __init__(self, cluster: Path, policy: Path, state: Path, listen: str) -> None:
        feeds, identities = load_cluster(cluster), load_policy(policy)
        self.folder = StateFolder(state, identities, listen.rpartition(":")[0])
        self._audit = AuditLog(state / "audit.jsonl")
        self._store = Store(state / "leases.sqlite")
        self.brokers = {name: FeedBroker(feed, self._store, self._audit) for name, feed in feeds.items()}
        public_key = self.folder.token_key.public_key().public_bytes_raw()
        self.authentication = AuthenticationService(self.folder, identities, self._audit)
        administration = StreamAdministrationService(self.brokers, self._audit)
        registry = AdapterRegistryService(self.brokers, public_key)
        operations = OperationsService(self.brokers)
        certificate, key = self.folder.server_certificate
        self._rpc: RpcServer = serve(
            [
                lambda server: admin_pb2_grpc.add_AuthenticationServicer_to_server(self.authentication, server),
                lambda server: admin_pb2_grpc.add_StreamAdministrationServicer_to_server(administration, server),
                lambda server: admin_pb2_grpc.add_AdapterRegistryServicer_to_server(registry, server),
                lambda server: admin_pb2_grpc.add_OperationsServicer_to_server(operations, server),
            ],
            [*ROLES_BY_SERVICE, *PUBLIC_SERVICES],
            listen,
            certificate,
            key,
            [AuthorizationInterceptor(TokenVerifier(public_key), ROLES_BY_SERVICE, PUBLIC_SERVICES)],
            thread_count=THREAD_COUNT,
        )
        self.endpoint = self._rpc.endpoint

    def stop(self) -> None:
        """End every stream, then the server."""
        for broker in self.brokers.values():
            broker.stop()
        self._rpc.stop()
        self._store.close()
        self._audit.close()
