"""The keys that sign tokens: one signs, the former ones are accepted until what they signed has expired.

A new key is recorded, and announced to adapters and sources, before it signs: a server that has not heard of it refuses
its tokens. It is made on an administrator's request, or by the first login after the present key has signed for its
time, so no thread waits for that. The keys are one document of the records; the next active server continues with them.
Invariant: a token is signed only with a key that is recorded.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from tandemfeed.admin_server.audit.log import AuditLog
from tandemfeed.admin_server.records.lease_records import ClusterRecords, RecordsUnavailable
from tandemfeed.transport.calls.revoked_tokens import KEPT_NS
from tandemfeed.transport.calls.server_proofs import prove
from tandemfeed.transport.calls.tokens import key_id_of, sign_token
from tandemfeed.v1 import admin_pb2, common_pb2

LOG = logging.getLogger("tandemfeed.admin_server.identity.token_keys")
DOCUMENT = "token_keys"  # the kind and the name of the document in the records
DAY_NS = 86_400 * 1_000_000_000
PERIOD_DAYS, PERIOD_DAYS_MAX = 30, 3_650
LEAD_NS = 5 * 1_000_000_000  # sources ask once a second
KEY_COUNT_MAX = 16  # every adapter and source receives all; each is accepted for an hour after its last use
FORMER_COUNT_MAX = 16  # public keys from before restored backups, which still verify this server's proofs


class TooManyKeys(Exception):
    """The keys were rotated so often that no further one fits; the text says what to do."""


class TokenKey(msgspec.Struct, frozen=True):
    """One key.

    Attributes:
        signs_from_unix_ns: when it begins to sign.
        accepted_until_unix_ns: when all that it signed has expired; 0: it has no successor.
    """

    private_key: bytes
    signs_from_unix_ns: int
    accepted_until_unix_ns: int = 0

    def __repr__(self) -> str:
        return f"TokenKey({key_id_of(self.public_key)})"

    @property
    def public_key(self) -> bytes:
        """The raw public key."""
        return Ed25519PrivateKey.from_private_bytes(self.private_key).public_key().public_bytes_raw()


class TokenKeySet(msgspec.Struct, frozen=True):
    """The keys, the oldest first; the last has no successor. Pure.

    Attributes:
        distrusts: why everything that former keys opened must be replaced, which has not been done yet; empty: nothing.
        former: public keys that were dropped because a backup was restored. No token of theirs is accepted, but what
            they proved stays true, because they were not in wrong hands.
    """

    keys: tuple[TokenKey, ...] = ()
    distrusts: str = ""
    former: tuple[bytes, ...] = ()

    def accepted_at(self, now_unix_ns: int) -> tuple[TokenKey, ...]:
        """The keys whose tokens are accepted."""
        return tuple(each for each in self.keys if not 0 < each.accepted_until_unix_ns <= now_unix_ns)

    def signing_at(self, now_unix_ns: int) -> TokenKey:
        """The key that signs: the newest that has begun. (If a clock was set back, the oldest that is accepted.)"""
        accepted = self.accepted_at(now_unix_ns)
        return next((each for each in reversed(accepted) if each.signs_from_unix_ns <= now_unix_ns), accepted[0])

    def rotated(self, private_key: bytes, now_unix_ns: int) -> TokenKeySet:
        """With one more key, which will sign soon."""
        begins = now_unix_ns + LEAD_NS
        former = [
            replace(each, accepted_until_unix_ns=each.accepted_until_unix_ns or begins + KEPT_NS)
            for each in self.accepted_at(now_unix_ns)
        ]
        return TokenKeySet((*former, TokenKey(private_key, begins)), self.distrusts, self.former)

    @staticmethod
    def of_one(private_key: bytes, now_unix_ns: int, distrusts: str = "") -> TokenKeySet:
        """With just one key, which signs now."""
        return TokenKeySet((TokenKey(private_key, now_unix_ns),), distrusts)


class TokenKeyBook:
    """The keys of the cluster. Safe to call from any thread; may wait for the disk.

    Args:
        period_ns: for how long a key signs.
        on_change: receives the keys that are accepted from now on.
    """

    def __init__(
        self,
        audit: AuditLog,
        on_change: Callable[[list[common_pb2.TokenKey]], None],
        period_ns: int = PERIOD_DAYS * DAY_NS,
        now_unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._audit, self._on_change, self._period_ns, self._now_unix_ns = audit, on_change, period_ns, now_unix_ns
        self._lock = threading.Lock()  # held while a change is recorded
        self._records: ClusterRecords | None = None
        self._set = TokenKeySet()

    def load(self, records: ClusterRecords) -> None:
        """Take the records of this leadership; make the cluster's first key.

        Raises:
            RecordsUnavailable.
        """
        with self._lock:
            self._records = records
            found = records.documents(DOCUMENT).get(DOCUMENT)
            if found is None:
                self._record(TokenKeySet.of_one(_new_key(), self._now_unix_ns()))
            else:
                self._set = msgspec.json.decode(found, type=TokenKeySet)
                self._on_change(self.accepted())

    @property
    def distrusts(self) -> str:
        """Why everything that former keys opened must be replaced now; empty: nothing must."""
        return self._set.distrusts

    def accepted(self) -> list[common_pb2.TokenKey]:
        """The public keys that are accepted now."""
        return [
            common_pb2.TokenKey(public_key=each.public_key, accepted_until_unix_ns=each.accepted_until_unix_ns)
            for each in self._set.accepted_at(self._now_unix_ns())
        ]

    def proving(self) -> list[common_pb2.TokenKey]:
        """The public keys that verify what this server proved, also before a restored backup."""
        former = [common_pb2.TokenKey(public_key=each) for each in self._set.former]
        return [*self.accepted(), *former]

    def statuses(self) -> list[admin_pb2.TokenKeyStatus]:
        """The keys that are accepted now, for people."""
        return [
            admin_pb2.TokenKeyStatus(
                key_id=key_id_of(each.public_key),
                signs_from_unix_ns=each.signs_from_unix_ns,
                accepted_until_unix_ns=each.accepted_until_unix_ns,
                rotation_unix_ns=0 if each.accepted_until_unix_ns else each.signs_from_unix_ns + self._period_ns,
            )
            for each in self._set.accepted_at(self._now_unix_ns())
        ]

    def sign(self, claims: Mapping[str, Any]) -> str:
        """A token with these claims. Makes a new key if one is due."""
        if self._is_due():
            try:
                self.rotate("schedule")
            except (RecordsUnavailable, TooManyKeys) as failed:  # the next login tries again
                LOG.warning("could not rotate the key that signs tokens", extra={"why": str(failed)})
        return sign_token(
            claims, Ed25519PrivateKey.from_private_bytes(self._set.signing_at(self._now_unix_ns()).private_key)
        )

    def prove(self, statement: bytes) -> bytes:
        """The proof that this server says so (`transport.calls.server_proofs`); empty before there is a key."""
        keys = self._set
        if not keys.keys:
            return b""
        return prove(statement, Ed25519PrivateKey.from_private_bytes(keys.signing_at(self._now_unix_ns()).private_key))

    def rotate(self, by: str, why: str = "") -> None:
        """Make a new key. The former ones are accepted until what they signed has expired.

        Raises:
            TooManyKeys, RecordsUnavailable: nothing has changed.
        """
        with self._lock:
            if by == "schedule" and not self._is_due():
                return  # another login has done it
            now = self._now_unix_ns()
            if len(self._set.accepted_at(now)) >= KEY_COUNT_MAX:
                raise TooManyKeys(
                    f"{KEY_COUNT_MAX} keys are accepted, because they were rotated so often within an hour; try again "
                    "later, or drop the former keys with --now"
                )
            changed = self._set.rotated(_new_key(), now)
            self._audit.write("token key rotated", key=key_id_of(changed.keys[-1].public_key), by=by, reason=why)
            self._record(changed)

    def drop_former(self, by: str, why: str, *, were_safe: bool = False) -> None:
        """Accept nothing that a former key signed. What such tokens may have opened must be replaced (`distrusts`).

        Args:
            were_safe: the former keys are only old, and not in wrong hands, so proofs that they made still count.

        Raises:
            RecordsUnavailable: nothing has changed.
        """
        with self._lock:
            changed = TokenKeySet.of_one(_new_key(), self._now_unix_ns(), distrusts=why)
            if were_safe:
                former = [*self._set.former, *(each.public_key for each in self._set.keys)]
                changed = replace(changed, former=tuple(former[-FORMER_COUNT_MAX:]))
            self._audit.write("token keys dropped", key=key_id_of(changed.keys[-1].public_key), by=by, reason=why)
            self._record(changed)

    def note_replaced(self) -> None:
        """Record that what `distrusts` requires is done."""
        with self._lock:
            if self._set.distrusts:
                self._record(replace(self._set, distrusts=""))

    def _is_due(self) -> bool:
        return self._now_unix_ns() >= self._set.keys[-1].signs_from_unix_ns + self._period_ns

    def _record(self, changed: TokenKeySet) -> None:
        """Record the keys before they count."""
        if self._records is None:
            raise RecordsUnavailable("this server is a standby")
        self._records.note_document(DOCUMENT, DOCUMENT, msgspec.json.encode(changed))
        self._set = changed
        self._on_change(self.accepted())


def _new_key() -> bytes:
    return Ed25519PrivateKey.generate().private_bytes_raw()
