"""Assembles the server: settings, private folder, records, brokers, services.

With the embedded store, it serves from start to stop. With its records in ZooKeeper, it takes part in an election: the
elected server is active; the others are standbys, with the same services behind a closed gate.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tandemfeed.admin_server.alert_watch import AlertWatch
from tandemfeed.admin_server.audit.log import AuditLog, AuditUnavailable
from tandemfeed.admin_server.audit.service import AuditAdministrationService
from tandemfeed.admin_server.feed.broker import FeedBroker
from tandemfeed.admin_server.feed.keys.given_rights import contribution_to
from tandemfeed.admin_server.identity.administration import IdentityAdministrationService
from tandemfeed.admin_server.identity.authentication import AuthenticationService, Ways
from tandemfeed.admin_server.identity.certificate_book import CertificateBook
from tandemfeed.admin_server.identity.certificate_login import CertificateLogin
from tandemfeed.admin_server.identity.identity_book import IdentityBook
from tandemfeed.admin_server.identity.issuers import Issuers
from tandemfeed.admin_server.identity.scram import SecretLogin
from tandemfeed.admin_server.identity.token_keys import DAY_NS, PERIOD_DAYS, TokenKeyBook
from tandemfeed.admin_server.identity.token_login import TokenLogin
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
from tandemfeed.admin_server.settings import load_cluster
from tandemfeed.transport.calls.notices.server import ServerNotices
from tandemfeed.transport.calls.server_names import ADMIN_SERVER, adapter_server, source_gateway
from tandemfeed.transport.calls.serving.authorization import Authorization
from tandemfeed.transport.calls.serving.limits import SUBSCRIPTIONS, of_subscribers
from tandemfeed.transport.calls.serving.server import MutualTls, RpcServer, serve
from tandemfeed.transport.calls.tokens import TokenVerifier
from tandemfeed.v1 import admin_pb2_grpc, common_pb2

LOG = logging.getLogger("tandemfeed.admin_server")
SUBSCRIBER_COUNT_MAX = 200
RETRY_PAUSE_S = 1.0


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
        listen_mutual_tls: a second address, which requires a client's certificate; None: there is none.
        issuers: the file of outside issuers of tokens; None: there are none.
        token_key_days: how long a key signs tokens before the next one does.

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
        listen_mutual_tls: str | None = None,
        issuers: Path | None = None,
        token_key_days: int = PERIOD_DAYS,
    ) -> None:
        self._feeds = load_cluster(cluster)
        self.policy = PolicyKeeper(policy, cluster, self._feeds)
        self._gate = LeadershipGate(is_open=zookeeper is None)
        self.brokers: dict[str, FeedBroker] = {}
        self._verifier = TokenVerifier(ADMIN_SERVER)  # refuses no lost rights: this server decides by the policy
        self._distrusting, self._starting_over = threading.Lock(), threading.Lock()
        self._is_stopping = threading.Event()
        self._issuers = Issuers(issuers)
        self._notices = ServerNotices()
        with ExitStack() as opened:
            if zookeeper is None:
                self.folder = StateFolder(state)
            else:
                client = connect(zookeeper)
                opened.callback(client.close)
                opened.callback(client.stop)
                known = cluster_fingerprint(client, zookeeper)
                self.folder = StateFolder(state, must_be_prepared=bool(known))
            opened.callback(self.folder.close)
            self._audit = AuditLog(state)
            opened.callback(self._audit.close)
            self.token_keys = TokenKeyBook(self._audit, self._announce_token_keys, token_key_days * DAY_NS)
            self.identities = IdentityBook(
                self.policy.policy_has,
                self._end_disabled,
                self._refuse_tokens,
                self._audit,
                self.folder.cluster_key,
            )
            self.certificates = CertificateBook(self.folder.authority, state, self._names_served_by, self._audit)
            if zookeeper is None:
                store = Store(state / "leases.sqlite")
                opened.callback(store.close)
                opened.callback(self._leave_folder, store)
                opened.callback(self._audit.close)  # before the store, which keeps the log's head
                opened.callback(self._stop_brokers)
                self._start_over: Callable[[], None] = partial(self._start_over_here, store)
                self.prepare(store)
            else:
                note_fingerprint(client, zookeeper, self.folder.fingerprint, state)
            opened.callback(self.policy.stop)
            self.policy.watch(self._audit, self._enforce_policy)
            self._rpc = self._serve(
                listen, listen_mutual_tls, subscriber_count_max, offers_reflection=offers_reflection
            )
            opened.callback(self._rpc.stop)
            self._notices.listen(self._rpc.endpoint, self._on_death_notice)
            opened.callback(self._notices.close)
            opened.callback(self._stop_brokers)  # runs first, so that no stream uses up the grace period of the stop
            if zookeeper is not None:
                self._rpc.set_serving(is_serving=False)
                sealer = KeySealer(self.folder.cluster_key)
                election = Election(client, zookeeper, self._rpc.endpoint, sealer, self)
                self._start_over = election.step_down
                opened.callback(election.stop)
                election.start()
            opened.callback(AlertWatch(lambda: self.served).stop)
            self._opened = opened.pop_all()
        self.endpoint = self._rpc.endpoint
        self.mutual_tls_endpoint = self._rpc.mutual_tls_endpoint

    def stop(self) -> None:
        """End every stream, then the server."""
        self._is_stopping.set()
        self._opened.close()

    @property
    def served(self) -> Mapping[str, FeedBroker]:
        """The feeds that this server is active for, kept up to date; empty while it is a standby."""
        return _ServedBrokers(self._gate, self.brokers)

    # ---- called by the election (interface Candidate) ----

    def prepare(self, records: ClusterRecords) -> None:
        """Load the identities, and create the brokers, from the records; end what the policy no longer grants."""
        doubt = sign_of_restored_records(records, self._audit)
        if isinstance(records, Store):
            doubt = sign_of_restored_folder(self.folder.path, records) or doubt
        self._audit.use_records(records)
        self._has_distrusted = False
        self.token_keys.load(records)
        self._load_identities(records)
        for name, feed in self._feeds.items():
            # Replaces the stopped broker of a former leadership, which ends any call that still uses it.
            self.brokers[name] = FeedBroker(
                feed,
                records,
                self._audit,
                self.token_keys.accepted,
                self._on_rollback,
                self._notices.granter,
                self.token_keys.prove,
                self.token_keys.proving,
            )
            self.brokers[name].shut_out(self.identities.disabled)
        self._replace_distrusted()
        if doubt:
            self._on_rollback(doubt)
            records.raise_generation(self._audit.known_generation)
        self._end_lost_rights(self.brokers.values())
        if isinstance(records, Store):
            renew_mark(self.folder.path, records)

    def _load_identities(self, records: ClusterRecords) -> None:
        """Load the identities and certificates, with what the folder has for those that are new."""
        names = list(self.policy.policy.identities)
        self.identities.load(records, self.folder.credentials)
        self.folder.note_imported()
        for name in self.identities.without_record(names):
            if (verifier := self.folder.make_secret(name)) is not None:
                self.identities.add(name, verifier, by="start")
        self.certificates.load(records, names)

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

    def _on_death_notice(self, incarnation: int) -> Callable[[], None]:
        rest = [broker.end(incarnation) for broker in self.served.values()]

        def finish() -> None:
            for each in rest:
                each()

        return finish

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
        """The records are a restored backup: distrust everything that was given out. Only the first proof counts."""
        with self._distrusting:
            if self._has_distrusted:
                return
            LOG.error("the records are a restored backup; replacing every key and token", extra={"why": why})
            self._audit.write("records restored", why=why)
            self.token_keys.drop_former("admin server", why, were_safe=True)
            self._replace_distrusted()
            self._has_distrusted = True

    def _drop_token_keys(self, by: str, why: str) -> None:
        """A key that signs tokens is in wrong hands: end every token and every call, and replace every key.

        The adapters' calls end first, because until an adapter registers again, it needs its peers' promises.
        """
        self._stop_brokers()
        try:
            self.token_keys.drop_former(by, why)
        finally:
            self._start_over()

    def _start_over_here(self, store: Store) -> None:
        """End every call and begin again, as after a restart, which adapters and clients outlive."""
        with self._starting_over:
            self.close()
            while not self._is_stopping.is_set():
                try:
                    self.prepare(store)
                except RecordsUnavailable:
                    LOG.exception("cannot serve again yet; retrying")
                    self._is_stopping.wait(RETRY_PAUSE_S)
                else:
                    self.open()
                    return

    def _replace_distrusted(self) -> None:
        """Replace the keys that somebody may have got with a token of a dropped key, unless that is done."""
        if why := self.token_keys.distrusts:
            for broker in self.brokers.values():
                broker.distrust(why)
            self.token_keys.note_replaced()

    def _announce_token_keys(self, keys: list[common_pb2.TokenKey]) -> None:
        self._verifier.trust(keys)
        if self.token_keys.distrusts:
            return  # Adapters hear of it when they register again. Until then they believe each other's promises.
        for broker in self.brokers.values():
            broker.announce()

    def _prepare_token(self, identity: IdentitySettings) -> int:
        """Record what a token is about to grant; return the time from which on it must have been issued."""
        brokers = self.served.values()
        for broker in brokers:
            topics = {channel.topic: channel.channel_id for channel in broker.feed.channels}
            granted = [topics[topic] for topic in identity.subscribe if topic in topics]
            granted += [contribution_to(topics[topic]) for topic in identity.contribute if topic in topics]
            broker.rights.note(identity.name, granted)
        return max((broker.rights.revoked.not_before(identity.name) for broker in brokers), default=0)

    def _leave_folder(self, store: Store) -> None:
        """Mark the folder as this server leaves it."""
        try:
            renew_mark(self.folder.path, store)
        except (OSError, RecordsUnavailable):
            LOG.exception("could not mark the state folder; the next start will take it for a restored one")

    def _end_disabled(self, disabled: frozenset[str]) -> None:
        """Exactly these identities are disabled now: end what they have, and replace the keys that they know."""
        for broker in self.served.values():
            broker.shut_out(disabled)
        self.policy.disable(disabled)

    def _refuse_tokens(self, identity: str) -> None:
        """Adapters refuse the tokens that an identity has; this server asks its records."""
        for broker in self.served.values():
            broker.refuse_tokens(identity)

    def _names_served_by(self, name: str) -> tuple[str, ...]:
        """The names of what an identity serves: adapters, by the cluster file, and the gap fills of its feeds."""
        feeds, identity = self._feeds.values(), self.policy.policy.identities.get(name)
        roles = frozenset() if identity is None else identity.roles
        adapters = [
            adapter_server(feed.name, adapter.name)
            for feed in feeds
            for adapter in feed.adapters
            if adapter.identity == name
        ]
        gateways = [source_gateway(feed.name) for feed in feeds if feed.has_source(name, roles)]
        return (*adapters, *gateways)

    def _stop_brokers(self) -> None:
        for broker in self.brokers.values():
            broker.stop()

    def _mutual_tls_port(self) -> int | None:
        endpoint = self._rpc.mutual_tls_endpoint
        return int(endpoint.rpartition(":")[2]) if endpoint else None

    def _serve(
        self, listen: str, listen_mutual_tls: str | None, subscriber_count_max: int, *, offers_reflection: bool
    ) -> RpcServer:
        ways = Ways(
            SecretLogin(self.identities.verifiers),
            CertificateLogin(self.certificates, self._mutual_tls_port),
            TokenLogin(self._issuers),
            self._mutual_tls_port,
        )
        self.authentication = AuthenticationService(
            self.token_keys.sign, ways, self.policy, self.identities, self._audit, self._prepare_token
        )
        identity = IdentityAdministrationService(
            self.identities, self.certificates, self.token_keys, self._drop_token_keys, self.policy, self._audit
        )
        policy_gate = PolicyGate(self.policy, self.identities.why_refused)
        registry = AdapterRegistryService(
            self.brokers, self.token_keys.accepted, self._audit, self._notices.key, self.policy.roles_of
        )
        operations = OperationsService(self.brokers, self.policy, self._audit, self.token_keys.statuses)
        policy = PolicyAdministrationService(self.policy, self._audit)
        audit = AuditAdministrationService(self.policy, self._audit)
        certificate, key = self.folder.server_certificate
        administration = StreamAdministrationService(
            self.brokers, self.policy, policy_gate, self._audit, self._verifier, subscriber_count_max
        )
        authority = self.folder.authority.pem(self.folder.authority.certificate)
        return serve(
            [
                lambda server: admin_pb2_grpc.add_AuthenticationServicer_to_server(self.authentication, server),
                lambda server: admin_pb2_grpc.add_StreamAdministrationServicer_to_server(administration, server),
                lambda server: admin_pb2_grpc.add_AdapterRegistryServicer_to_server(registry, server),
                lambda server: admin_pb2_grpc.add_OperationsServicer_to_server(operations, server),
                lambda server: admin_pb2_grpc.add_PolicyAdministrationServicer_to_server(policy, server),
                lambda server: admin_pb2_grpc.add_AuditAdministrationServicer_to_server(audit, server),
                lambda server: admin_pb2_grpc.add_IdentityAdministrationServicer_to_server(identity, server),
            ],
            [*ROLES_BY_SERVICE, *PUBLIC_SERVICES],
            listen,
            certificate,
            key,
            [
                self._gate,
                Authorization(self._verifier, ROLES_BY_SERVICE, PUBLIC_SERVICES, ends_streams=False),
                policy_gate,
            ],
            on_refused=self._audit.note_refused_call,
            limits={SUBSCRIPTIONS: of_subscribers(subscriber_count_max)},
            unavailable=(RecordsUnavailable, AuditUnavailable),
            offers_reflection=offers_reflection,
            settle=self._audit.settle,
            mutual_tls=None if listen_mutual_tls is None else MutualTls(listen_mutual_tls, authority),
        )
