"""The certificates that the authority has issued, and which of them are revoked, in the cluster's records.

A login accepts only a certificate that is recorded and not revoked. So one that was signed with a stolen authority key
is refused too, and so is one that was issued after the backup from which the records were restored.
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from cryptography import x509

from tandemfeed.admin_server.audit.log import AuditLog
from tandemfeed.admin_server.records.authority import (
    VALID_FOR,
    Authority,
    Revocation,
    client_extensions,
    server_extensions,
)
from tandemfeed.admin_server.records.lease_records import ClusterRecords, RecordsUnavailable
from tandemfeed.runtime.durable import replace_file

CERTIFICATE = "certificates"  # the kind of document in the records
CLIENT, SERVER = "client", "server"
VALID_DAYS_DEFAULT = 365
VALID_DAYS_MAX = VALID_FOR.days
CRL_FILE = "crl.pem"


class CertificateRefused(Exception):
    """The request cannot be signed, or there is nothing to revoke; the text says why."""


class CertificateRecord(msgspec.Struct, frozen=True):
    """A certificate of the authority. Attributes: revoked_unix_ns: 0: it is not revoked."""

    serial: str
    identity: str
    purpose: str
    server_names: tuple[str, ...]
    not_before_unix_ns: int
    not_after_unix_ns: int
    revoked_unix_ns: int = 0
    reason: str = ""


class CertificateBook:
    """The authority's records. Safe to call from any thread.

    Args:
        folder: gets the revocation list, and `certs/` the certificates that are made at start.
        server_names: what an identity serves now; empty: nothing.
    """

    def __init__(
        self, authority: Authority, folder: Path, server_names: Callable[[str], Sequence[str]], audit: AuditLog
    ) -> None:
        self._authority, self._folder, self._server_names, self._audit = authority, folder, server_names, audit
        self._lock = threading.Lock()  # held while a change is recorded
        self._records: ClusterRecords | None = None
        self._certificates: dict[str, CertificateRecord] = {}

    def load(self, records: ClusterRecords, identities: Sequence[str]) -> None:
        """Take the records of this leadership, and make certificates for identities that have no file in `certs/`."""
        with self._lock:
            self._records = records
            found = records.documents(CERTIFICATE)
            self._certificates = {
                serial: msgspec.json.decode(row, type=CertificateRecord) for serial, row in found.items()
            }
            for identity in identities:
                self._provide(identity)
            self._write_list()

    def _provide(self, identity: str) -> None:
        """Make the files of an identity, and record their certificate, unless this or another server has done so."""
        folder, names = self._folder / "certs", tuple(self._server_names(identity))
        path = folder / f"{identity}.crt"
        if not path.exists() and any(
            each.identity == identity and each.server_names == names and not each.revoked_unix_ns
            for each in self._certificates.values()
        ):
            return
        self._authority.issue(path, folder / f"{identity}.key", identity, names)
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        if self._authority.has_issued(certificate) and serial_of(certificate) not in self._certificates:
            self._note(_record_of(certificate, identity, SERVER if names else CLIENT, names), by="start")

    def why_invalid(self, certificate: x509.Certificate, identity: str) -> str | None:
        """Why a client certificate does not prove this identity; None if it does."""
        known = self._certificates.get(serial_of(certificate))
        if known is None or known.identity != identity or known.purpose != CLIENT:
            return "the records have no such certificate"
        if known.revoked_unix_ns:
            return f"the certificate is revoked: {known.reason}"
        return None

    def all(self) -> list[CertificateRecord]:
        """Every certificate, by identity and age."""
        return sorted(self._certificates.values(), key=lambda each: (each.identity, each.not_before_unix_ns))

    def has_valid(self, identity: str) -> bool:
        """Whether an identity has a certificate to log in with."""
        now = time.time_ns()
        return any(
            each.identity == identity and each.purpose == CLIENT and not each.revoked_unix_ns
            and now < each.not_after_unix_ns
            for each in self._certificates.values()
        )  # fmt: skip

    def issue(
        self, identity: str, signing_request: bytes, valid_days: int, purpose: str, by: str
    ) -> tuple[bytes, CertificateRecord]:
        """Sign a request: (certificate in PEM format, its record). What it is for comes from the cluster, not from it.

        Args:
            valid_days: 0: the default.
            purpose: "client" or "server"; empty: "server" for an identity that serves.

        Raises:
            CertificateRefused: the request is invalid, or the identity serves nothing.
        """
        names = tuple(self._server_names(identity))
        purpose = purpose or (SERVER if names else CLIENT)
        if purpose == SERVER and not names:
            reason = "the cluster file makes it no adapter, and it is not the source of a feed"
            raise CertificateRefused(f"{identity} serves nothing, so it gets no server's certificate: {reason}")
        days = valid_days or VALID_DAYS_DEFAULT
        if days > VALID_DAYS_MAX:
            raise CertificateRefused(f"{days} days are too long; a certificate is valid for at most {VALID_DAYS_MAX}")
        extensions = server_extensions(names) if purpose == SERVER else client_extensions(identity)
        try:
            certificate = self._authority.sign(signing_request, identity, extensions, datetime.timedelta(days=days))
        except ValueError as bad:
            raise CertificateRefused(str(bad)) from bad
        record = _record_of(certificate, identity, purpose, names if purpose == SERVER else ())
        with self._lock:
            self._note(record, by)
        return self._authority.pem(certificate), record

    def matching(self, which: str) -> list[CertificateRecord]:
        """The certificate with a serial number in hexadecimal, or all of an identity."""
        serial = which.lower().replace(":", "").lstrip("0")
        return [each for each in self._certificates.values() if which == each.identity or serial == each.serial]

    def revoke(self, which: str, reason: str, by: str) -> list[CertificateRecord]:
        """Revoke a certificate by its serial number, or all of an identity; return those that were valid.

        Raises:
            CertificateRefused: there is none.
        """
        with self._lock:
            named = self.matching(which)
            valid = [each for each in named if not each.revoked_unix_ns]
            if not valid:
                state = "is revoked already" if named else "does not exist"
                raise CertificateRefused(f"a valid certificate {which!r} {state}; see `tandemfeed admin cert list`")
            now, revoked = time.time_ns(), []
            for each in valid:
                self._audit.write(
                    "certificate revoked", identity=each.identity, serial=each.serial, by=by, reason=reason
                )
                revoked.append(msgspec.structs.replace(each, revoked_unix_ns=now, reason=reason))
                self._record(revoked[-1])
            self._write_list()
            return revoked

    def _note(self, record: CertificateRecord, by: str) -> None:
        self._audit.write(
            "certificate issued", identity=record.identity, serial=record.serial, purpose=record.purpose, by=by
        )
        self._record(record)

    def _record(self, record: CertificateRecord) -> None:
        if self._records is None:
            raise RecordsUnavailable("this server is a standby")
        self._records.note_document(CERTIFICATE, record.serial, msgspec.json.encode(record))
        self._certificates[record.serial] = record

    def _write_list(self) -> None:
        """Write the revocation list (CRL) for other tools; logins ask the records."""
        revoked = [
            Revocation(int(each.serial, 16), each.revoked_unix_ns)
            for each in self._certificates.values()
            if each.revoked_unix_ns
        ]
        replace_file(self._folder / CRL_FILE, self._authority.revocation_list(revoked))


def serial_of(certificate: x509.Certificate) -> str:
    """A certificate's serial number in hexadecimal, as tools print it."""
    return f"{certificate.serial_number:x}"


def _record_of(
    certificate: x509.Certificate, identity: str, purpose: str, server_names: Sequence[str]
) -> CertificateRecord:
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return CertificateRecord(
        serial_of(certificate),
        identity,
        purpose,
        tuple(server_names),
        int(first.timestamp()) * 1_000_000_000,
        int(last.timestamp()) * 1_000_000_000,
    )
