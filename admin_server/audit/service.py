"""The AuditAdministration service: reading and checking the audit log of this server."""

from __future__ import annotations

from typing import NoReturn

import grpc

from tandemfeed.admin_server.audit.chain import Entry
from tandemfeed.admin_server.audit.files import newest_entries
from tandemfeed.admin_server.audit.log import AuditLog
from tandemfeed.admin_server.audit.verification import verify
from tandemfeed.admin_server.policy.policy_keeper import PolicyKeeper
from tandemfeed.admin_server.policy.rules import Action
from tandemfeed.transport.calls.serving.call_context import caller_of
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc

LIMIT_DEFAULT = 100
LIMIT_MAX = 10_000
WHO = ("identity", "by")  # the fields of an entry that name who acted or was refused


class AuditAdministrationService(admin_pb2_grpc.AuditAdministrationServicer):
    """The whole log is for admins of every feed. An admin of a feed may read the entries of this feed.

    Observers may not: the entries name every client of the feed, its address and its refusals.
    """

    def __init__(self, policy: PolicyKeeper, audit: AuditLog) -> None:
        self._policy, self._audit = policy, audit

    def ReadAudit(  # noqa: N802
        self, request: admin_pb2.ReadAuditRequest, context: grpc.ServicerContext
    ) -> admin_pb2.ReadAuditReply:
        """The newest entries that were asked for."""
        identity = caller_of(context).identity
        may_read_all = self._policy.is_granted_on_every_feed(identity, Action.ADMINISTER)
        if not may_read_all and not self._policy.decide(identity, Action.ADMINISTER, request.feed).is_allowed:
            self._refuse(context, "may not administer the feed, which reading its entries requires")
        limit = min(request.limit or LIMIT_DEFAULT, LIMIT_MAX)
        head = self._audit.head
        entries = newest_entries(self._audit.folder, lambda entry: _is_wanted(entry, request), limit)
        return admin_pb2.ReadAuditReply(
            entries=[
                admin_pb2.AuditEntry(
                    number=entry.number, unix_ns=entry.unix_ns, event=entry.event, line=entry.line.decode()
                )
                for entry in entries
            ],
            head_number=head.number,
            head_digest=head.digest,
        )

    def VerifyAudit(  # noqa: N802
        self, _request: admin_pb2.VerifyAuditRequest, context: grpc.ServicerContext
    ) -> admin_pb2.VerifyAuditReply:
        """Check the log against what this server has written."""
        if not self._policy.is_granted_on_every_feed(caller_of(context).identity, Action.ADMINISTER):
            self._refuse(context, "may not administer every feed, which checking the audit log requires")
        found = verify(self._audit.folder, self._audit.head)
        return admin_pb2.VerifyAuditReply(
            entry_count=found.entry_count,
            first_number=found.first_number,
            head_number=found.head.number,
            head_digest=found.head.digest,
            problems=found.problems,
            notes=found.notes,
        )

    def _refuse(self, context: grpc.ServicerContext, why: str) -> NoReturn:
        identity, code = caller_of(context).identity, grpc.StatusCode.PERMISSION_DENIED
        self._audit.refuse(context, code, f"{identity} {why}", "audit command refused", identity=identity)


def _is_wanted(entry: Entry, request: admin_pb2.ReadAuditRequest) -> bool:
    return (
        entry.number > request.after_number
        and entry.unix_ns >= request.since_unix_ns
        and (not request.until_unix_ns or entry.unix_ns < request.until_unix_ns)
        and (not request.event or entry.event == request.event)
        and (not request.feed or entry.fields.get("feed") == request.feed)
        and (not request.identity or request.identity in [entry.fields.get(field) for field in WHO])
    )
