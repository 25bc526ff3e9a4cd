"""The server put together: settings, private folder, store, brokers, services."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from admin_server.audit import AuditLog, RefusalAudit
from admin_server.authentication import AuthenticationService
from admin_server.broker import FeedBroker
from admin_server.services import (
    PUBLIC_SERVICES,
    ROLES_BY_SERVICE,
    AdapterRegistryService,
    OperationsService,
    StreamAdministrationService,
)
from admin_server.settings import IdentitySettings, check_identities, load_cluster, load_policy
from admin_server.state_folder import StateFolder
from admin_server.store import Store
from tandemfeed.v1 import admin_pb2_grpc
from transport.rpc import AuthorizationInterceptor, RpcServer, TokenVerifier, serve

SUBSCRIBER_COUNT_MAX = 200
THREADS_FOR_CALLS = 32  # logins, registrations, questions: subscribers can never take these


class AdminServer:
    """A running stream administration server.

    Args:
        cluster, policy: the two settings files.
        state: the private folder, made if it does not exist.
        listen: host:port; port 0 takes a free one.
        subscriber_count_max: clients connected at once; each holds a thread.

    Raises:
        SettingsError: a settings file cannot be used.
        OSError: the address or the folder cannot be used.
    """

    def __init__(
        self, cluster: Path, policy: Path, state: Path, listen: str, subscriber_count_max: int = SUBSCRIBER_COUNT_MAX
    ) -> None:
        feeds, identities = load_cluster(cluster), load_policy(policy)
        check_identities(cluster, feeds, identities)
        with ExitStack() as opened:
            self.folder = StateFolder(state, identities, listen.rpartition(":")[0])
            opened.callback(self.folder.close)
            self._audit = AuditLog(state / "audit.jsonl")
            opened.callback(self._audit.close)
            self._store = Store(state / "leases.sqlite")
            opened.callback(self._store.close)
            self.brokers: dict[str, FeedBroker] = {}
            opened.callback(self._stop_brokers)
            for name, feed in feeds.items():
                self.brokers[name] = FeedBroker(feed, self._store, self._audit)
            self._rpc = self._serve(listen, identities, subscriber_count_max)
            opened.callback(self._rpc.stop)
            opened.callback(self._stop_brokers)  # first: streams end by themselves, then calls get their grace
            self._opened = opened.pop_all()
        self.endpoint = self._rpc.endpoint

    def stop(self) -> None:
        """End every stream, then the server."""
        self._opened.close()

    def _stop_brokers(self) -> None:
        for broker in self.brokers.values():
            broker.stop()

    def _serve(self, listen: str, identities: dict[str, IdentitySettings], subscriber_count_max: int) -> RpcServer:
        public_key = self.folder.token_key.public_key().public_bytes_raw()
        self.authentication = AuthenticationService(self.folder, identities, self._audit)
        administration = StreamAdministrationService(self.brokers, self._audit, subscriber_count_max)
        registry = AdapterRegistryService(self.brokers, public_key, self._audit)
        operations = OperationsService(self.brokers)
        certificate, key = self.folder.server_certificate
        # Twice: an adapter's new stream comes before its former one has ended.
        adapter_stream_count_max = 2 * sum(len(broker.feed.adapters) for broker in self.brokers.values())
        return serve(
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
            [
                RefusalAudit(self._audit),
                AuthorizationInterceptor(TokenVerifier(public_key), ROLES_BY_SERVICE, PUBLIC_SERVICES),
            ],
            thread_count=subscriber_count_max + adapter_stream_count_max + THREADS_FOR_CALLS,
        )
