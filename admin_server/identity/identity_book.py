"""The identities in the cluster's records: verifiers of secrets, which identities are disabled, last logins.

The policy says what an identity may do (`admin_server.policy`). This says how it proves itself, and whether it is
disabled. The active server keeps the records in memory and writes every change through, so a server that becomes active
loads what its predecessor acknowledged. Invariant: a change is in the audit log and the records before it counts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping

import msgspec

from tandemfeed.admin_server.audit.log import AuditLog
from tandemfeed.admin_server.identity.verifiers import Verifier, decoy_verifier
from tandemfeed.admin_server.records.lease_records import ClusterRecords, RecordsUnavailable

LOG = logging.getLogger("tandemfeed.admin_server.identity")
IDENTITY, LAST_LOGIN = "identities", "last_logins"  # kinds of documents in the records
LOGIN_NOTED_EVERY_NS = 60_000_000_000  # a login must not wait for the disk because of a statistic
OVERLAP_MAX_NS = 30 * 86_400 * 1_000_000_000


class IdentityRefused(Exception):
    """The identity's state does not allow the change; the text says why."""


class AlreadyHasSecret(IdentityRefused):
    """The identity has a secret, so none is added."""


class IdentityRecord(msgspec.Struct, frozen=True):
    """How one identity proves itself.

    Attributes:
        former, former_until_unix_ns: the verifier before the last rotation, and until when it is valid.
        tokens_from_unix_ns: tokens that were issued earlier are refused.
        disabled_reason: why an admin disabled it; only while it is disabled.
    """

    verifier: Verifier | None = None
    former: Verifier | None = None
    former_until_unix_ns: int = 0
    tokens_from_unix_ns: int = 0
    is_disabled: bool = False
    disabled_reason: str = ""


class LastLogin(msgspec.Struct, frozen=True):
    """When, and by which way, an identity last logged in."""

    at_unix_ns: int
    way: str


NEVER = LastLogin(0, "")


class IdentityBook:
    """The identities' records. Safe to call from any thread.

    Args:
        is_known: whether the policy has an identity.
        on_disabled: receives all disabled identities when they change; returns when their rights have ended.
        refuse_tokens: makes other servers refuse the tokens that an identity has.
        decoy_key: known to the server only; decoys are derived from it.
        now_unix_ns: the wall clock, which the validity of secrets and tokens follows.
    """

    def __init__(
        self,
        is_known: Callable[[str], bool],
        on_disabled: Callable[[frozenset[str]], None],
        refuse_tokens: Callable[[str], None],
        audit: AuditLog,
        decoy_key: bytes,
        now_unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._now_unix_ns = now_unix_ns
        self._is_known, self._on_disabled, self._refuse_tokens = is_known, on_disabled, refuse_tokens
        self._audit, self._decoy_key = audit, decoy_key
        self._lock = threading.Lock()  # held while a change is recorded
        self._records: ClusterRecords | None = None
        self._identities: dict[str, IdentityRecord] = {}
        self._logins: dict[str, LastLogin] = {}

    def load(self, records: ClusterRecords, verifiers: Mapping[str, Verifier]) -> None:
        """Take the records of this leadership.

        Args:
            verifiers: of a file credentials.json; imported for identities that the records do not have.
        """
        decode = msgspec.json.decode
        with self._lock:
            self._records = records
            found = records.documents(IDENTITY)
            self._identities = {name: decode(row, type=IdentityRecord) for name, row in found.items()}
            self._logins = {name: decode(row, type=LastLogin) for name, row in records.documents(LAST_LOGIN).items()}
            for name, verifier in verifiers.items():
                if name not in self._identities:
                    self._audit.write("identity imported", identity=name)
                    self._record(name, IdentityRecord(verifier))
            self._on_disabled(self.disabled)

    # ---- what logins ask ----

    @property
    def disabled(self) -> frozenset[str]:
        """The identities that are disabled."""
        return frozenset(name for name, each in self._identities.items() if each.is_disabled)

    def without_record(self, names: Iterable[str]) -> list[str]:
        """Those of these identities that the records do not have."""
        return [name for name in names if name not in self._identities]

    def record_of(self, name: str) -> IdentityRecord:
        """An identity's record; an empty one if there is none."""
        return self._identities.get(name, IdentityRecord())

    def names(self) -> list[str]:
        """All identities that have a record."""
        return sorted(self._identities)

    def verifiers(self, name: str) -> tuple[Verifier, Verifier]:
        """The verifiers that a proof may fit. Always two with the same salt, so that a check takes equal time."""
        record = self._identities.get(name)
        decoy = decoy_verifier(name, self._decoy_key)
        if record is None or record.verifier is None or record.is_disabled or not self._is_known(name):
            return decoy, decoy
        present = record.verifier
        is_former_valid = record.former is not None and self._now_unix_ns() < record.former_until_unix_ns
        former = record.former if is_former_valid and record.former is not None else decoy
        if (former.salt, former.iterations) != (present.salt, present.iterations):
            former = msgspec.structs.replace(decoy, salt=present.salt, iterations=present.iterations)
        return present, former

    def last_login(self, name: str) -> LastLogin:
        """When an identity last logged in, to the minute."""
        return self._logins.get(name, NEVER)

    def note_login(self, name: str, way: str) -> None:
        """Note a login; a login does not fail because of it."""
        now = self._now_unix_ns()
        with self._lock:
            last = self._logins.get(name, NEVER)
            if last.way == way and abs(now - last.at_unix_ns) < LOGIN_NOTED_EVERY_NS:
                return
            self._logins[name] = LastLogin(now, way)
            try:
                self._writable().note_document(LAST_LOGIN, name, msgspec.json.encode(self._logins[name]))
            except RecordsUnavailable:
                LOG.warning("could not record the time of a login", extra={"identity": name})

    def tokens_from(self, identity: str) -> int:
        """The time from which on a token of an identity must have been issued. It is in the future if the clock was set
        back since: then a token states it, not the time of its issue."""
        return self.record_of(identity).tokens_from_unix_ns

    def why_refused(self, identity: str, issued_unix_ns: int) -> str | None:
        """Why a token of an identity is refused, though it has not expired; None if it is not."""
        record = self._identities.get(identity)
        if record is None:
            return None
        if record.is_disabled:
            return f"{identity} is disabled"
        if issued_unix_ns < record.tokens_from_unix_ns:
            return f"the secret or certificate of {identity} was replaced or revoked; log in again"
        return None

    # ---- what administrators change ----

    def add(self, name: str, verifier: Verifier, by: str) -> None:
        """Give an identity of the policy its first secret.

        Raises:
            IdentityRefused: the policy does not have it, or it has a secret.
        """
        with self._lock:
            self._require_known(name)
            if self.record_of(name).verifier == verifier:
                return  # the answer to the first request was lost
            if self.record_of(name).verifier is not None:
                raise AlreadyHasSecret(f"{name} has a secret already; use `tandemfeed admin identity rotate {name}`")
            self._change("identity added", name, by, verifier=verifier)

    def rotate(self, name: str, verifier: Verifier, overlap_ns: int, by: str) -> None:
        """Replace an identity's secret.

        Args:
            overlap_ns: how long the former secret stays valid; 0: it ends now, with the tokens that it gave.

        Raises:
            IdentityRefused: the identity has no secret, or the overlap is not possible.
        """
        with self._lock:
            self._require_known(name)
            former = self.record_of(name).verifier
            if former is None:
                raise IdentityRefused(f"{name} has no secret yet; use `tandemfeed admin identity add {name}`")
            if overlap_ns > OVERLAP_MAX_NS:
                raise IdentityRefused("the overlap is longer than 30 days, which is the limit")
            if overlap_ns and (former.salt, former.iterations) != (verifier.salt, verifier.iterations):
                raise IdentityRefused("the new verifier has another salt, so the former secret cannot stay valid")
            now = self._now_unix_ns()
            if overlap_ns:
                end = {"former": former, "former_until_unix_ns": now + overlap_ns}
            else:
                end = {"former": None, "former_until_unix_ns": 0, "tokens_from_unix_ns": now}
            self._change("identity rotated", name, by, {"overlap_ns": overlap_ns}, verifier=verifier, **end)

    def refuse_tokens_so_far(self, name: str, why: str, by: str) -> None:
        """From now on, the tokens that an identity has are refused; it has to log in again."""
        with self._lock:
            self._change("tokens ended", name, by, {"reason": why}, tokens_from_unix_ns=self._now_unix_ns())

    def disable(self, name: str, reason: str, by: str) -> None:
        """End all rights of an identity, until it is enabled. No effect if it is disabled.

        Raises:
            IdentityRefused: neither the policy nor the records have it, or it is the caller.
        """
        with self._lock:
            if name not in self._identities:
                self._require_known(name)
            if name == by:
                raise IdentityRefused(f"{name} is the identity that you use; disable it as another one")
            record = self.record_of(name)
            if record.is_disabled:
                self._on_disabled(self.disabled)  # what may have failed before
                return
            # Tokens too, because services that have no policy accept them, and because it may be enabled later.
            marks = {"is_disabled": True, "disabled_reason": reason, "tokens_from_unix_ns": self._now_unix_ns()}
            self._audit.write("identity disabled", identity=name, by=by, reason=reason)
            record = self._recorded(name, msgspec.structs.replace(record, **marks))
            try:
                self._on_disabled(self.disabled | {name})  # before its calls end, so that they say what it loses
            finally:
                self._identities[name] = record
                self._refuse_tokens(name)

    def enable(self, name: str, by: str) -> None:
        """Return its rights to an identity.

        Raises:
            IdentityRefused: it is not disabled.
        """
        with self._lock:
            if not self.record_of(name).is_disabled:
                raise IdentityRefused(f"{name} is not disabled")
            self._change("identity enabled", name, by, is_disabled=False, disabled_reason="")
            self._on_disabled(self.disabled)

    def _require_known(self, name: str) -> None:
        if not self._is_known(name):
            raise IdentityRefused(f"the policy has no identity {name!r}; add it to the policy file first")

    def _change(
        self, event: str, name: str, by: str, audited: Mapping[str, object] | None = None, **fields: object
    ) -> None:
        self._audit.write(event, identity=name, by=by, **(audited or {}))
        self._record(name, msgspec.structs.replace(self.record_of(name), **fields))
        if "tokens_from_unix_ns" in fields:
            self._refuse_tokens(name)

    def _record(self, name: str, record: IdentityRecord) -> None:
        self._identities[name] = self._recorded(name, record)

    def _recorded(self, name: str, record: IdentityRecord) -> IdentityRecord:
        self._writable().note_document(IDENTITY, name, msgspec.json.encode(record))
        return record

    def _writable(self) -> ClusterRecords:
        if self._records is None:
            raise RecordsUnavailable("this server is a standby")
        return self._records
