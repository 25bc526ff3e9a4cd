"""Assembles the server: settings, private folder, records, brokers, services.

With the embedded store, it serves from start to stop. With its records in ZooKeeper, it takes part in an election: the
elected server is active; the others are standbys, with the same services behind a closed gate.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from tandemfeed.admin_server.audit.log import AuditLog, AuditUnavailable
from tandemfeed.admin_server.audit.service import AuditAdministrationService
from tandemfeed.admin_server.authentication import AuthenticationService
from tandemfeed.admin_server.feed.broker import FeedBroker
from tandemfeed.admin_server.policy.policy_gate import PolicyGate
from tandemfeed.admin_server.policy.policy_keeper import PolicyKeeper
from tandemfeed.admin_server.policy.policy_service import PolicyAdministrationService
from tandemfeed.admin_server.policy.rules import IdentitySettings
from tandemfeed.admin_server.records.leadership import LeadershipGate
from tandemfeed.admin_server.records.lease_records import ClusterRecords, RecordsUnavailable
from tandemfeed.admin_server.records.restored_backups import (
    renew_mark,
    sign_of_restored_folder,
    sign_of_restored_records,
)
from tandemfeed.admin_server.records.state_folder import StateFolder
from tandemfeed.admin_server.records.store import Store
from tandemfeed.admin_server.records.zookeeper import ZooKeeperSettings, cluster_fingerprint, connect, note_fingerprint
from tandemfeed.admin_server.records.zookeeper_election import Election
from tandemfeed.admin_server.records.zookeeper_sealing import KeySealer
from tandemfeed.admin_server.services.adapter_registry import AdapterRegistryService
from tandemfeed.admin_server.services.operations import OperationsService
from tandemfeed.admin_server.services.roles import PUBLIC_SERVICES, ROLES_BY_SERVICE
from tandemfeed.admin_server.services.stream_administration import StreamAdministrationService
from tandemfeed.admin_server.settings import FeedSettings, load_cluster
from tandemfeed.transport.calls.death_notice import DeathNoticeReceiver
from tandemfeed.transport.calls.revoked_tokens import EVERYBODY, RevokedTokens
from tandemfeed.transport.calls.server_names import ADMIN_SERVER, adapter_server, source_gateway
from tandemfeed.transport.calls.serving.authorization import Authorization
from tandemfeed.transport.calls.serving.server import RpcServer, serve
from tandemfeed.transport.calls.tokens import TokenVerifier
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc

LOG = logging.getLogger("tandemfeed.admin_server")
SUBSCRIBER_COUNT_MAX = 200


class _ServedBrokers(Mapping[str, FeedBroker]):
    """The brokers while the gate is open."""

    def __init__(self, gate: LeadershipGate, brokers: Mapping[str, FeedBroker]) -> None:
        self._gate, self._brokers = gate, brokers

    def __getitem__(self, feed: str) -> FeedBroker:
        return self._brokers[feed]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._brokers) if self._gate.is_open else [])

    def __len__(self) -> int:
        return len(self._brokers) if self._gate.is_open else 0


class AdminServer:
    """A running admin server.

    Args:
        cluster, policy: the two settings files.
        state: the private folder, created if it does not exist.
        listen: host:port; port 0 selects a free one.
        subscriber_count_max: the limit of clients connected at the same time.
        zookeeper: where several servers share their records; None: the records are in the folder of this only server.
        offers_reflection: describe the services to administrators.

    Raises:
        SettingsError: a settings file cannot be used.
        OSError: the address or the folder cannot be used.
        RecordsUnavailable: the records cannot be read.
    """

    def __init__(
        self,
        cluster: Path,
        policy: Path,
        state: Path,
        listen: str,
        subscriber_count_max: int = SUBSCRIBER_COUNT_MAX,
        zookeeper: ZooKeeperSettings | None = None,
        *,
        offers_reflection: bool = False,
    ) -> None:
        self._feeds = load_cluster(cluster)
        self.policy = PolicyKeeper(policy, cluster, self._feeds)
        self._gate = LeadershipGate(is_open=zookeeper is None)
        self.brokers: dict[str, FeedBroker] = {}
        # Only what a restored backup refuses. This server decides by the policy, so it need not refuse lost rights.
        self._refused_tokens = RevokedTokens()
        self._distrusting = threading.Lock()
        server_names = _server_names(self._feeds, self.policy)
        with ExitStack() as opened:
            if zookeeper is None:
                self.folder = StateFolder(state, server_names)
            else:
                client = connect(zookeeper)
                opened.callback(client.close)
                opened.callback(client.stop)
                known = cluster_fingerprint(client, zookeeper)
                self.folder = StateFolder(state, server_names, must_be_prepared=bool(known))
            opened.callback(self.folder.close)
            self._audit = AuditLog(state)
            opened.callback(self._audit.close)
            if zookeeper is None:
                store = Store(state / "leases.sqlite")
                opened.callback(store.close)
                opened.callback(self._leave_folder, store)
                opened.callback(self._audit.close)  # before the store, which keeps the log's head
                opened.callback(self._stop_brokers)
                self.prepare(store)
            else:
                note_fingerprint(client, zookeeper, self.folder.fingerprint, state)
            opened.callback(self.policy.stop)
            self.policy.watch(self._audit, self._enforce_policy)
            self._death_notices = DeathNoticeReceiver()
            self._rpc = self._serve(listen, subscriber_count_max, offers_reflection=offers_reflection)
            opened.callback(self._rpc.stop)
            self._death_notices.listen(self._rpc.endpoint, self._on_death_notice)
            opened.callback(self._death_notices.close)
            opened.callback(self._stop_brokers)  # runs first, so that no stream uses up the grace period of the stop
            if zookeeper is not None:
                self._rpc.set_serving(is_serving=False)
                sealer = KeySealer(self.folder.token_key)
                election = Election(client, zookeeper, self._rpc.endpoint, sealer, self)
                opened.callback(election.stop)
                election.start()
            self._opened = opened.pop_all()
        self.endpoint = self._rpc.endpoint

    def stop(self) -> None:
        """End every stream, then the server."""
        self._opened.close()

    @property
    def served(self) -> Mapping[str, FeedBroker]:
        """The feeds that this server is active for, kept up to date; empty while it is a standby."""
        return _ServedBrokers(self._gate, self.brokers)

    # ---- called by the election (interface Candidate) ----

    def prepare(self, records: ClusterRecords) -> None:
        """Create the brokers from the records, and end what the records gave and the policy no longer grants."""
        doubt = sign_of_restored_records(records, self._audit)
        if isinstance(records, Store):
            doubt = sign_of_restored_folder(self.folder.path, records) or doubt
        self._audit.use_records(records)
        self._has_distrusted = False
        for name, feed in self._feeds.items():
            # Replaces the stopped broker of a former leadership, which ends any call that still uses it.
            self.brokers[name] = FeedBroker(feed, records, self._audit, self._on_rollback)
        self._adopt_refused_tokens()
        if doubt:
            self._on_rollback(doubt)
            records.raise_generation(self._audit.known_generation)
        self._end_lost_rights(self.brokers.values())
        if isinstance(records, Store):
            renew_mark(self.folder.path, records)

    def open(self) -> None:
        """Become active: serve calls."""
        self._gate.is_open = True
        self._rpc.set_serving(is_serving=True)
        self._audit.write("became active")

    def close(self) -> None:
        """Become a standby: refuse calls, end every stream."""
        self._gate.is_open = False
        self._rpc.set_serving(is_serving=False)
        self._stop_brokers()

    def follow(self, active_endpoint: str) -> None:
        """Remember which server is active, so that this one can name it to callers."""
        self._gate.active_endpoint = active_endpoint

    def _on_death_notice(self, incarnation: int) -> None:
        for broker in self.served.values():
            broker.end(incarnation)

    def _enforce_policy(self) -> None:
        """End what the changed policy no longer grants. It is in force already, so no client that has lost a channel is
        sent the new keys."""
        served = list(self.served.values())
        for broker in served:
            broker.limit_subscribers(self.policy)
        self._end_lost_rights(served)

    def _end_lost_rights(self, brokers: Iterable[FeedBroker]) -> None:
        failed: RecordsUnavailable | None = None
        for broker in brokers:
            try:
                broker.end_lost_rights(self.policy)
            except RecordsUnavailable as unavailable:
                failed = unavailable
        if failed is not None:
            raise failed

    def _on_rollback(self, why: str) -> None:
        """The records are a restored backup: distrust everything that was given out. Once, whoever else proves it."""
        with self._distrusting:
            if self._has_distrusted:
                return
            LOG.error("the records are a restored backup; replacing every key and token", extra={"why": why})
            self._audit.write("records restored", why=why)
            for broker in self.brokers.values():
                broker.distrust(why)
            self._adopt_refused_tokens()
            self._has_distrusted = True

    def _adopt_refused_tokens(self) -> None:
        """What was refused after a restored backup is also refused here, and after any restart."""
        for broker in self.brokers.values():
            refused = broker.rights.revoked.not_before(EVERYBODY)
            self._refused_tokens.receive([admin_pb2.TokensRevoked(issued_before_unix_ns=refused)])

    def _prepare_token(self, identity: IdentitySettings) -> int:
        """Record what a token is about to grant; return the time from which on it must have been issued."""
        brokers = self.served.values()
        for broker in brokers:
            topics = {channel.topic: channel.channel_id for channel in broker.feed.channels}
            broker.rights.note(identity.name, [topics[topic] for topic in identity.subscribe if topic in topics])
        return max((broker.rights.revoked.not_before(identity.name) for broker in brokers), default=0)

    def _leave_folder(self, store: Store) -> None:
        """Mark the folder as this server leaves it."""
        try:
            renew_mark(self.folder.path, store)
        except (OSError, RecordsUnavailable):
            LOG.exception("could not mark the state folder; the next start will take it for a restored one")

    def _stop_brokers(self) -> None:
        for broker in self.brokers.values():
            broker.stop()

    def _serve(self, listen: str, subscriber_count_max: int, *, offers_reflection: bool) -> RpcServer:
        public_key = self.folder.token_key.public_key().public_bytes_raw()
        self.authentication = AuthenticationService(self.folder, self.policy, self._audit, self._prepare_token)
        policy_gate = PolicyGate(self.policy)
        registry = AdapterRegistryService(self.brokers, public_key, self._audit, self._death_notices.key)
        operations = OperationsService(self.brokers, self.policy, self._audit)
        policy = PolicyAdministrationService(self.policy, self._audit)
        audit = AuditAdministrationService(self.policy, self._audit)
        certificate, key = self.folder.server_certificate
        verifier = TokenVerifier(ADMIN_SERVER, public_key, self._refused_tokens)
        administration = StreamAdministrationService(
            self.brokers, self.policy, policy_gate, self._audit, verifier, subscriber_count_max
        )
        return serve(
            [
                lambda server: admin_pb2_grpc.add_AuthenticationServicer_to_server(self.authentication, server),
                lambda server: admin_pb2_grpc.add_StreamAdministrationServicer_to_server(administration, server),
                lambda server: admin_pb2_grpc.add_AdapterRegistryServicer_to_server(registry, server),
                lambda server: admin_pb2_grpc.add_OperationsServicer_to_server(operations, server),
                lambda server: admin_pb2_grpc.add_PolicyAdministrationServicer_to_server(policy, server),
                lambda server: admin_pb2_grpc.add_AuditAdministrationServicer_to_server(audit, server),
            ],
            [*ROLES_BY_SERVICE, *PUBLIC_SERVICES],
            listen,
            certificate,
            key,
            [
                self._gate,
                Authorization(verifier, ROLES_BY_SERVICE, PUBLIC_SERVICES, ends_streams=False),
                policy_gate,
            ],
            on_refused=self._audit.note_refused_call,
            unavailable=(RecordsUnavailable, AuditUnavailable),
            offers_reflection=offers_reflection,
            settle=self._audit.settle,
        )


def _server_names(
    feeds: Mapping[str, FeedSettings], identities: Mapping[str, IdentitySettings]
) -> dict[str, tuple[str, ...]]:
    """What each identity serves: the adapters that the cluster file makes it; a source, the gap fills of every feed."""
    names: dict[str, tuple[str, ...]] = {}
    for name, identity in identities.items():
        adapters = [
            adapter_server(feed.name, adapter.name)
            for feed in feeds.values()
            for adapter in feed.adapters
            if adapter.identity == name
        ]
        gateways = [source_gateway(feed) for feed in feeds] if "source" in identity.roles else []
        names[name] = (*adapters, *gateways)
    return names
