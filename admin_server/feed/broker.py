"""The broker of one feed: what adapters and subscribers request, in steps of state change, record and audit.

`FeedState` owns the feed's state and its lock. This module and `feed_operations` call it, and wait for the disk between
its steps, never inside one. Each attending adapter has a queue, which its stream drains. Each subscription's call is
notified, and makes the grant when it can send it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from tandemfeed.admin_server.audit.log import AuditLog
from tandemfeed.admin_server.feed.contributions.contribution_gateways import ContributionGateways
from tandemfeed.admin_server.feed.descriptions import describe_client, describe_feed, describe_key, event_to_proto
from tandemfeed.admin_server.feed.feed_operations import FeedOperations
from tandemfeed.admin_server.feed.feed_state import FeedState
from tandemfeed.admin_server.feed.grants import feed_grant
from tandemfeed.admin_server.feed.keys.given_rights import GivenRights, contributed_channel, contribution_to
from tandemfeed.admin_server.feed.keys.key_ring import SOURCE, KeyRing
from tandemfeed.admin_server.feed.members.claims import EPOCH_JUMP_MAX, Grounds
from tandemfeed.admin_server.feed.members.registrations import REASON_LENGTH_MAX, ProcessStart
from tandemfeed.admin_server.feed.streams import Attendance, Subscriber
from tandemfeed.admin_server.feed.timekeeper import Timekeeper
from tandemfeed.admin_server.lease.lease_core import FeedLease
from tandemfeed.admin_server.policy.rules import Action, Extent
from tandemfeed.admin_server.records.lease_records import ClusterRecords, RecordsUnavailable
from tandemfeed.admin_server.settings import AdapterSettings, FeedSettings
from tandemfeed.feedcore.wire.refusal import PacketRefused
from tandemfeed.runtime.threads import failed_threads
from tandemfeed.transport.calls.notices.layout import GrantNotice
from tandemfeed.transport.calls.server_proofs import ProofVerifier, Prover, epoch_statement, start_statement
from tandemfeed.transport.sealing.epoch_proofs import decode_epoch_proof
from tandemfeed.v1 import admin_pb2, common_pb2

LOG = logging.getLogger("tandemfeed.admin_server.feed.broker")


class Grants(Protocol):
    """The policy in force."""

    def extent(self, identity: str, topic: str) -> Extent:
        """How much of a channel an identity may receive now."""
        ...

    def allows(self, identity: str, action: Action, topics: Iterable[str]) -> bool:
        """Whether an identity may do this now on every one of the topics."""
        ...

    def roles_of(self, identity: str) -> frozenset[str]:
        """The roles of an identity; none if the policy does not name it."""
        ...


class FeedBroker:
    """One feed, as the services see it. Safe to call from any thread.

    Args:
        records: the durable state.
        token_keys: the public keys of tokens that adapters accept.
        on_rollback: called with the reason when an adapter proves that the records are a restored backup.
        prove: signs a statement of this server, for others to pass on.
        proving_keys: the public keys that verify such statements; None: those of tokens.
        granter: returns how to send grant notices to the adapter at an endpoint; may wait for a name to be resolved.

    Attributes:
        key_ring: the feed's keys. Only its adapters may have decision keys, only its source and adapters source keys.
        rights: what identities were given: it must be noted before keys or tokens are handed out.
        operations: what an administrator may request.
        gateways: the feed's contribution gateways.
    """

    def __init__(
        self,
        feed: FeedSettings,
        records: ClusterRecords,
        audit: AuditLog,
        token_keys: Callable[[], list[common_pb2.TokenKey]],
        on_rollback: Callable[[str], None] = lambda _why: None,
        granter: Callable[[str], Callable[[GrantNotice], None]] = lambda _endpoint: lambda _notice: None,
        prove: Prover = lambda _statement: b"",
        proving_keys: Callable[[], list[common_pb2.TokenKey]] | None = None,
    ) -> None:
        self.feed = feed
        self._records, self._audit, self._on_rollback, self._granter = records, audit, on_rollback, granter
        self._token_keys, self._prove, self._proving_keys = token_keys, prove, proving_keys or token_keys
        self.rights = GivenRights(records, feed.feed_id)
        channel_ids = [channel.channel_id for channel in feed.channels]
        self._topics = {channel.topic: channel.channel_id for channel in feed.channels}
        self.key_ring = KeyRing(records, feed.feed_id, channel_ids, source_is_sealed=feed.source_is_sealed)
        self._state = FeedState(feed, records, audit, self.key_ring, self.rights.revoked, token_keys, prove)
        self.operations = FeedOperations(feed, self._state, records)
        self._timekeeper = Timekeeper(feed.name, self._state, self.key_ring)
        state = self._state
        self.gateways = ContributionGateways(feed, records, state.note, state.announce, state.resumed_at_ns)
        self._state.ended_source_starts = self.gateways.ended_starts
        self._disabled: frozenset[str] = frozenset()
        self._timekeeper.start()

    @property
    def lease(self) -> FeedLease:
        """The feed's lease."""
        return self._state.lease

    # ---- adapters ----

    def register(
        self, adapter: AdapterSettings, request: admin_pb2.RegisterRequest, process: ProcessStart
    ) -> common_pb2.AdapterDescription:
        """Register a start of an adapter; return its description, with the incarnation of this start.

        This announces the start to all adapters and subscribers before the adapter sends its first packet.

        Args:
            process: the process that registers.

        Raises:
            AnotherProcess, ReturnAwaited: another process is registered as this adapter, and it attends or is awaited.
            OtherConversion: an attending adapter converts otherwise.
        """
        feed_id, adapter_id = self.feed.feed_id, adapter.adapter_id
        resumed = self._state.check_registration(adapter, request, process)
        if resumed is None and request.resume_incarnation:
            self._check_known(adapter, request)
        self.rights.note(adapter.identity, (SOURCE, *(channel.channel_id for channel in self.feed.channels)))
        start = resumed or self._records.new_start(feed_id, adapter_id, request.public_key)
        self._records.note_registration(feed_id, adapter_id, start.incarnation, request.rpc_endpoint)
        replaced = self._state.claim_registration(adapter, request, process, start.incarnation)
        self._state.processes.save(adapter_id)
        if replaced is not None:
            self.leave(replaced)
            replaced.end()
        description = self._state.begin_start(adapter, request, start, is_resumed=resumed is not None)
        self._audit.write("registered", feed=self.feed.name, adapter=adapter.name, incarnation=start.incarnation)
        return description

    def attend(self, adapter: AdapterSettings, incarnation: int, report_id: int) -> Attendance:
        """Begin the adapter's stream, whose first report is `report_id`."""
        notify = self._granter(self._state.endpoint_of(adapter.adapter_id))
        attendance = Attendance(adapter, incarnation, report_id, time.monotonic_ns(), notify)
        if self._state.attend(attendance):
            self._state.processes.save_if_possible(adapter.adapter_id)
            self._audit.write("attending", feed=self.feed.name, adapter=adapter.name, incarnation=incarnation)
            if (difference := self._state.other_conversion(adapter.adapter_id)) is not None:
                self.operations.fail_on_request(adapter, difference)  # both registered before one attended
        if adapter.identity in self._disabled:  # since the call was admitted
            self._end_disabled(attendance)
        return attendance

    def report(self, attendance: Attendance, report: admin_pb2.AdapterReport) -> None:
        """Process a report: the adapter's state, its requests, or both."""
        epoch = max((channel.position.epoch for channel in report.state.channels), default=0)
        epoch = max(epoch, report.renew_epoch)
        if epoch > self._state.reserved_end and not self._learn_epoch(attendance.adapter, report.state, epoch):
            self._state.hear(attendance, report.report_id)
            return
        if self._state.report(attendance, report) and report.fail_reason:
            self.operations.fail_on_request(attendance.adapter, report.fail_reason[:REASON_LENGTH_MAX])

    def leave(self, attendance: Attendance, *, has_ended: bool = False) -> None:
        """The adapter's stream ended. Args: has_ended: its process is known to have ended."""
        if self._state.leave(attendance, has_ended=has_ended):
            self._note_left(attendance)

    def end(self, incarnation: int) -> Callable[[], None]:
        """Note that this start of an adapter has ended, even if its stream is still open.

        Returns:
            What is left to be done, which is not urgent, as a takeover is, and waits for the disk.
        """
        ended = self._state.attendance_of(incarnation)
        if ended is None:
            return lambda: None
        has_left = self._state.leave(ended, has_ended=True)

        def finish() -> None:
            if has_left:
                self._note_left(ended)
            ended.end()
            self._audit.write("ended", feed=self.feed.name, adapter=ended.adapter.name, incarnation=incarnation)

        return finish

    def _note_left(self, attendance: Attendance) -> None:
        self._state.processes.save_if_possible(attendance.adapter.adapter_id)
        self._audit.write("left", feed=self.feed.name, adapter=attendance.adapter.name)

    def _check_known(self, adapter: AdapterSettings, request: admin_pb2.RegisterRequest) -> None:
        """An adapter presents a start other than its last. One that this server registered, as its own signature says,
        and that the records do not know proves that they are old."""
        presented, newest = request.resume_incarnation, self._records.newest_incarnation()
        if presented <= newest and not self._state.contradicts(request):
            return
        what = f"presents start {presented}, which the records (up to {newest}) do not know"
        key = request.public_key
        registered = start_statement(self.feed.feed_id, adapter.adapter_id, presented, request.resume_salt, key)
        if not self._is_proved(registered, request.resume_proof):
            self._state.refuse_claim("start", adapter, f"{what}, without this server's proof")
            return
        if presented > newest:
            self._records.skip_incarnations(presented)
        self._on_rollback(f"{adapter.name} {what}")

    def _learn_epoch(self, adapter: AdapterSettings, state: common_pb2.FeedAdapterState, epoch: int) -> bool:
        """An adapter is in an epoch that the records never reserved. If there are grounds to believe it, they are old,
        and later epochs must be higher. False: it is not believed."""
        known = self._state.reserved_end
        grounds, believed = self._state.judge_claim(
            "epoch", adapter, epoch, known, is_proved=self._is_epoch_proved(state.epoch_proof, epoch)
        )
        what = f"was in epoch {epoch}; the records know epochs up to {known}"
        if grounds is Grounds.NONE or believed > known + EPOCH_JUMP_MAX:
            self._state.refuse_claim("epoch", adapter, f"{what}, and nothing else supports it")
            return False
        if grounds is Grounds.PROOF:
            self._on_rollback(f"{adapter.name} {what}")
        try:
            if grounds is Grounds.MOST:  # this feed's adapters say so, which is no reason to distrust another's keys
                self.distrust(
                    f"more than half of the adapters were in epoch {believed}; the records know up to {known}"
                )
            self._state.skip_epochs(believed, self._records.reserve_epochs(self.feed.feed_id, believed))
        except RecordsUnavailable:  # its next report tries again
            LOG.exception("could not reserve epochs", extra={"feed": self.feed.name})
        return epoch <= believed

    def _is_epoch_proved(self, datagram: bytes, epoch: int) -> bool:
        """Whether a proof shows that this server granted this epoch or a later one."""
        try:
            proof = decode_epoch_proof(datagram)
        except PacketRefused:
            return False
        statement = epoch_statement(self.feed.feed_id, proof.adapter_id, proof.epoch)
        return proof.feed_id == self.feed.feed_id and proof.epoch >= epoch and self._is_proved(statement, proof.proof)

    def _is_proved(self, statement: bytes, proof: bytes) -> bool:
        return ProofVerifier(self._proving_keys()).is_proved(statement, proof)

    def start_proof(self, adapter: AdapterSettings, incarnation: int) -> bytes:
        """This server's proof that it registered a start; empty if it is not the newest any more."""
        start = self._state.newest_start(adapter.adapter_id)
        if start is None or start.incarnation != incarnation:
            return b""
        feed_id, adapter_id = self.feed.feed_id, adapter.adapter_id
        return self._prove(start_statement(feed_id, adapter_id, incarnation, start.salt, start.public_key))

    def shut_out(self, disabled: frozenset[str]) -> None:
        """From now on, exactly these identities are disabled: end the streams of adapters that have them."""
        self._disabled = disabled
        for attendance in self._state.attendances():
            if attendance.adapter.identity in disabled:
                self._end_disabled(attendance)

    def _end_disabled(self, attendance: Attendance) -> None:
        self.leave(attendance)
        attendance.end()
        self._state.note("attendance revoked", adapter=attendance.adapter.name, identity=attendance.adapter.identity)

    def refuse_tokens(self, identity: str) -> None:
        """From now on, the adapters refuse the tokens that an identity has.

        Raises:
            RecordsUnavailable: they are refused, but it is not recorded.
        """
        try:
            self.rights.revoke_tokens([identity])
        finally:
            self._state.announce()

    # ---- subscribers ----

    def subscribe(self, subscriber: Subscriber) -> None:
        """A client's subscription began, or has other channels. Its rights must have been noted before."""
        self._state.add_subscriber(subscriber)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """A client's subscription ended."""
        self._state.remove_subscriber(subscriber)

    def limit_subscribers(self, policy: Grants) -> None:
        """The policy has changed: adapters serve no subscription more than it is granted, and its call says so."""
        topics = {channel.channel_id: channel.topic for channel in self.feed.channels}
        self._state.limit_subscribers(lambda identity, channel_id: policy.extent(identity, topics[channel_id]))

    @property
    def topics(self) -> Mapping[str, int]:
        """The channel_id of each topic."""
        return self._topics

    def grant(self, extents: Mapping[int, Extent]) -> admin_pb2.Grant:
        """The present grant of these channels, by channel_id."""
        return feed_grant(self.feed, self._state.view(), self.key_ring.keys, extents, self._token_keys())

    def end_lost_rights(self, policy: Grants) -> None:
        """Make what identities were given useless where the policy no longer grants it: their tokens, and the keys.

        Keys are replaced whether or not such an identity is connected, because it keeps those that it has.

        Raises:
            RecordsUnavailable: not everything is done; the next call does the rest.
        """
        lost = self.rights.lost(lambda identity, channel_id: self._is_entitled(policy, identity, channel_id))
        if not lost:
            return
        topics = {channel.channel_id: channel.topic for channel in self.feed.channels} | {SOURCE: "source packets"}
        topics |= {
            contribution_to(channel_id): f"contributions to {topic}" for topic, channel_id in self.topics.items()
        }
        identities = sorted(set().union(*lost.identities.values()))
        try:
            self.rights.revoke_tokens(identities)
            self.key_ring.replace([each for each in lost.identities if contributed_channel(each) is None])
            self.rights.forget(lost)
        finally:
            self._state.announce()  # also wakes the timekeeper, which replaces keys later if that failed
        replaced = [topics.get(channel_id, f"channel {channel_id}") for channel_id in sorted(lost.identities)]
        self._state.note("keys replaced", topics=replaced, lost_by=identities)

    def announce(self) -> None:
        """Announce the present keys and adapters to all adapters and subscribers."""
        self._state.announce()

    def distrust(self, why: str) -> None:
        """Replace every key, because the wrong hands may have it.

        Raises:
            RecordsUnavailable: not everything is done.
        """
        self.key_ring.replace_all()
        self._state.announce()
        self._state.note("keys replaced", topics=[channel.topic for channel in self.feed.channels], why=why)

    def _is_entitled(self, policy: Grants, identity: str, channel_id: int) -> bool:
        roles = policy.roles_of(identity)
        if "adapter" in roles and any(adapter.identity == identity for adapter in self.feed.adapters):
            return True
        if channel_id == SOURCE:
            return self.feed.has_source(identity, roles)
        if (contributed := contributed_channel(channel_id)) is not None:
            taking = [each.topic for each in self.feed.contributed_channels if each.channel_id == contributed]
            return bool(taking) and policy.allows(identity, Action.CONTRIBUTE, taking)
        topics = [channel.topic for channel in self.feed.channels if channel.channel_id == channel_id]
        return any(policy.extent(identity, topic) for topic in topics)

    def clients(self) -> list[admin_pb2.ClientStatus]:
        """The clients' open streams, the oldest first."""
        return [describe_client(self.feed, subscriber) for subscriber in self._state.subscribers()]

    def kick(self, identity: str, client_id: int, reason: str, by: str) -> list[admin_pb2.ClientStatus]:
        """End the streams of an identity, or one stream, and return them.

        Args:
            identity: empty: `client_id` says which stream.
        """

        def is_meant(subscriber: Subscriber) -> bool:
            return subscriber.identity == identity if identity else subscriber.client_id == client_id

        kicked = self._state.end_subscribers(is_meant, f"ended by an operator: {reason}")
        for each in kicked:
            self._state.note("client kicked", identity=each.identity, peer=each.peer, reason=reason, by=by)
        return [describe_client(self.feed, subscriber) for subscriber in kicked]

    def key_statuses(self) -> list[admin_pb2.KeyStatus]:
        """The keys of all channels and of the source, without their secrets."""
        return [describe_key(self.feed, key, rotation) for key, rotation in self.key_ring.listed()]

    def rotate_keys(self, channel_ids: Collection[int], by: str) -> None:
        """Replace the keys of these channels, and of the source if it is one of them, on an operator's request.

        Raises:
            RecordsUnavailable: not done yet; it is done as soon as the records can be written.
        """
        try:
            self.key_ring.replace(channel_ids)
            self._state.note("keys replaced", channels=sorted(channel_ids), by=by)
        finally:
            self._state.announce()  # also wakes the timekeeper, which replaces them later if that failed

    def report_source(self, identity: str, report: admin_pb2.SourceReport, *, is_feeds_own: bool = False) -> None:
        """Keep the report of a source's process. Args: is_feeds_own: it may send this feed's source packets, so
        adapters may follow it into a session."""
        now = time.monotonic_ns(), time.time_ns()
        self._state.sources.note(identity, report, *now, vouches=is_feeds_own)

    def history(self) -> list[admin_pb2.HistoryEvent]:
        """What happened to the feed's roles, the newest last."""
        return [event_to_proto(event) for event in self._state.history()]

    # ---- descriptions ----

    @property
    def session(self) -> int:
        """The latest session that an adapter has begun, or the feed's first one."""
        return self._state.session

    def describe(self, extents: Mapping[int, Extent] | None = None) -> common_pb2.FeedDescription:
        """The feed in its present session, limited to these channels and symbols (None: all)."""
        return describe_feed(self.feed, self._state.session, extents)

    def adapters(self) -> list[common_pb2.AdapterDescription]:
        """Every adapter that has ever registered."""
        return self._state.adapters()

    def status(self) -> admin_pb2.FeedStatus:
        """The feed's status for administrators, with every configured adapter."""
        status = self._state.status()
        status.failed_threads.extend(sorted(failed_threads()))
        for source in status.sources:
            source.gateway_part = self.gateways.part_of(source.report.process_nonce)
        return status

    def note_alert(self, event: str, text: str) -> None:
        """Keep in the feed's history that an alert began or ended."""
        self._state.note_alert(event, text)

    def stop(self) -> None:
        """End every stream."""
        self._state.stop()
        self._timekeeper.join()
