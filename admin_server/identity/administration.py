"""The IdentityAdministration service: secrets and states of identities, certificates, the key that signs tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc

from tandemfeed.admin_server.audit.log import AuditLog
from tandemfeed.admin_server.identity.certificate_book import (
    CLIENT,
    SERVER,
    CertificateBook,
    CertificateRecord,
    CertificateRefused,
)
from tandemfeed.admin_server.identity.identity_book import AlreadyHasSecret, IdentityBook, IdentityRefused
from tandemfeed.admin_server.identity.token_keys import TokenKeyBook, TooManyKeys
from tandemfeed.admin_server.identity.verifiers import Verifier
from tandemfeed.admin_server.policy.policy_keeper import PolicyKeeper
from tandemfeed.admin_server.policy.rules import Action
from tandemfeed.admin_server.records.lease_records import RecordsUnavailable
from tandemfeed.transport.calls.serving.call_context import caller_of
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc

REASON_LENGTH_MAX = 300


class IdentityAdministrationService(admin_pb2_grpc.IdentityAdministrationServicer):
    """For identities that may administer every feed, because an identity that sets secrets can log in as any other."""

    def __init__(
        self,
        identities: IdentityBook,
        certificates: CertificateBook,
        token_keys: TokenKeyBook,
        drop_token_keys: Callable[[str, str], None],
        policy: PolicyKeeper,
        audit: AuditLog,
    ) -> None:
        self._identities, self._certificates = identities, certificates
        self._token_keys, self._drop_token_keys = token_keys, drop_token_keys
        self._policy, self._audit = policy, audit

    # ---- identities ----

    def ListIdentities(  # noqa: N802
        self, request: admin_pb2.ListIdentitiesRequest, context: grpc.ServicerContext
    ) -> admin_pb2.ListIdentitiesReply:
        """The identities of the policy, and those that only the records have."""
        self._administrator(context)
        names = sorted({*self._policy.policy.identities, *self._identities.names()})
        chosen = [name for name in names if request.name in ("", name)]
        if not chosen:
            context.abort(grpc.StatusCode.NOT_FOUND, f"there is no identity {request.name!r}")
        return admin_pb2.ListIdentitiesReply(identities=map(self._status, chosen))

    def _status(self, name: str) -> admin_pb2.IdentityStatus:
        record, last, policy = self._identities.record_of(name), self._identities.last_login(name), self._policy.policy
        known = policy.identities.get(name)
        ways = [("secret", record.verifier is not None), ("certificate", self._certificates.has_valid(name))]
        status = admin_pb2.IdentityStatus(
            name=name,
            roles=() if known is None else sorted(policy.roles_of(known)),
            ways=[way for way, has_it in ways if has_it],
            is_disabled=record.is_disabled,
            last_login_unix_ns=last.at_unix_ns,
            last_login_way=last.way,
            former_secret_until_unix_ns=record.former_until_unix_ns,
            is_in_policy=known is not None,
        )
        if record.verifier is not None:
            status.salt, status.iterations = record.verifier.salt, record.verifier.iterations
        return status

    def AddIdentity(  # noqa: N802
        self, request: admin_pb2.AddIdentityRequest, context: grpc.ServicerContext
    ) -> admin_pb2.AddIdentityReply:
        """Give an identity its first secret."""
        by = self._administrator(context)
        with _refusing(context):
            self._identities.add(request.name, _verifier(request.verifier, context), by)
        return admin_pb2.AddIdentityReply()

    def RotateIdentity(  # noqa: N802
        self, request: admin_pb2.RotateIdentityRequest, context: grpc.ServicerContext
    ) -> admin_pb2.RotateIdentityReply:
        """Replace an identity's secret."""
        by = self._administrator(context)
        with _refusing(context):
            verifier = _verifier(request.verifier, context)
            self._identities.rotate(request.name, verifier, request.overlap_ns, by)
        return admin_pb2.RotateIdentityReply()

    def DisableIdentity(  # noqa: N802
        self, request: admin_pb2.DisableIdentityRequest, context: grpc.ServicerContext
    ) -> admin_pb2.DisableIdentityReply:
        """End all rights of an identity."""
        by, reason = self._administrator(context), _reason(request.reason, context)
        with _refusing(context):
            self._identities.disable(request.name, reason, by)
        return admin_pb2.DisableIdentityReply()

    def EnableIdentity(  # noqa: N802
        self, request: admin_pb2.EnableIdentityRequest, context: grpc.ServicerContext
    ) -> admin_pb2.EnableIdentityReply:
        """Return its rights to a disabled identity."""
        by = self._administrator(context)
        with _refusing(context):
            self._identities.enable(request.name, by)
        return admin_pb2.EnableIdentityReply()

    # ---- certificates ----

    def IssueCertificate(  # noqa: N802
        self, request: admin_pb2.IssueCertificateRequest, context: grpc.ServicerContext
    ) -> admin_pb2.IssueCertificateReply:
        """Sign a request for what the cluster and policy files make the identity."""
        by = self._administrator(context)
        if request.name not in self._policy.policy.identities:
            text = f"the policy has no identity {request.name!r}; add it to the policy file first"
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
        if request.purpose not in ("", CLIENT, SERVER):
            text = f"purpose is {request.purpose!r}; it must be {CLIENT!r} or {SERVER!r}"
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        with _refusing(context):
            pem, record = self._certificates.issue(
                request.name, request.signing_request, request.valid_days, request.purpose, by
            )
        return admin_pb2.IssueCertificateReply(certificate=pem, status=_described(record))

    def RevokeCertificates(  # noqa: N802
        self, request: admin_pb2.RevokeCertificatesRequest, context: grpc.ServicerContext
    ) -> admin_pb2.RevokeCertificatesReply:
        """Revoke certificates, and end what their owners have from them.

        TLS of gRPC for Python checks no revocation list, so callers would go on believing a revoked server. Its
        identity is disabled instead, which ends its registration, keys and announcements.
        """
        by, reason = self._administrator(context), _reason(request.reason, context)
        with _refusing(context):
            matching = self._certificates.matching(request.which)
            valid = [each for each in matching if not each.revoked_unix_ns]
            servers = sorted({each.identity for each in valid if each.purpose == SERVER})
            if by in servers:
                raise IdentityRefused(f"this would disable {by}, which is the identity that you use")
            # First, so that the command can be repeated if a record fails: revoked certificates would not match again.
            for identity in servers:
                self._identities.disable(identity, f"its certificate was revoked: {reason}", by)
            for identity in sorted({each.identity for each in valid} - {*servers}):
                self._identities.refuse_tokens_so_far(identity, f"a certificate was revoked: {reason}", by)
            revoked = self._certificates.revoke(request.which, reason, by)
        return admin_pb2.RevokeCertificatesReply(revoked=map(_described, revoked), disabled_identities=servers)

    def ListCertificates(  # noqa: N802
        self, _request: admin_pb2.ListCertificatesRequest, context: grpc.ServicerContext
    ) -> admin_pb2.ListCertificatesReply:
        """Every certificate that was issued."""
        self._administrator(context)
        return admin_pb2.ListCertificatesReply(certificates=map(_described, self._certificates.all()))

    # ---- the key that signs tokens ----

    def RotateTokenKeys(  # noqa: N802
        self, request: admin_pb2.RotateTokenKeysRequest, context: grpc.ServicerContext
    ) -> admin_pb2.RotateTokenKeysReply:
        """Sign tokens with a new key."""
        by = self._administrator(context)
        with _refusing(context):
            if request.drop_former:
                self._drop_token_keys(by, _reason(request.reason, context))
            else:
                self._token_keys.rotate(by, request.reason[:REASON_LENGTH_MAX])
        return admin_pb2.RotateTokenKeysReply(keys=self._token_keys.statuses())

    def _administrator(self, context: grpc.ServicerContext) -> str:
        """The caller, who must administer every feed."""
        identity = caller_of(context).identity
        if not self._policy.is_granted_on_every_feed(identity, Action.ADMINISTER):
            code = grpc.StatusCode.PERMISSION_DENIED
            text = f"{identity} may not administer every feed, which the commands for identities require"
            self._audit.refuse(context, code, text, "identity command refused", identity=identity)
        return identity


@contextmanager
def _refusing(context: grpc.ServicerContext) -> Iterator[None]:
    """Report a refused change to the caller."""
    try:
        yield
    except AlreadyHasSecret as refused:
        context.abort(grpc.StatusCode.ALREADY_EXISTS, str(refused))
    except (IdentityRefused, CertificateRefused) as refused:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(refused))
    except TooManyKeys as refused:
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(refused))
    except (RecordsUnavailable, OSError) as failed:
        context.abort(grpc.StatusCode.UNAVAILABLE, f"not done, because it could not be recorded: {failed}")


def _reason(reason: str, context: grpc.ServicerContext) -> str:
    if not reason:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a reason is required; it is recorded")
    return reason[:REASON_LENGTH_MAX]


def _verifier(sent: admin_pb2.SecretVerifier, context: grpc.ServicerContext) -> Verifier:
    try:
        return Verifier(sent.salt, sent.stored_key, sent.server_key, sent.iterations)
    except ValueError as bad:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the verifier is invalid: {bad}")
        raise AssertionError("abort raises") from bad


def _described(record: CertificateRecord) -> admin_pb2.CertificateStatus:
    return admin_pb2.CertificateStatus(
        serial=record.serial,
        identity=record.identity,
        purpose=record.purpose,
        server_names=record.server_names,
        not_before_unix_ns=record.not_before_unix_ns,
        not_after_unix_ns=record.not_after_unix_ns,
        revoked_unix_ns=record.revoked_unix_ns,
        reason=record.reason,
    )
