"""The bytes of the notices.

HMAC-SHA256 (RFC 2104) authenticates each under a key that only the adapter start that it names received, over TLS. A
repeated or late notice changes nothing: incarnations and epochs are never reused, and a grant counts from a report.
"""

from __future__ import annotations

import hmac
import struct
from dataclasses import dataclass

KEY_SIZE = 32
SEAL_SIZE = 32  # of HMAC-SHA256, at the end of each notice
DEATH_MAGIC, GRANT_MAGIC = b"TFW1", b"TFG2"
EPOCH_PROOF_SIZE = 88  # of `transport.sealing.epoch_proofs`; zeros: there is none
DEATH = struct.Struct("<4sI")  # magic, incarnation
GRANT = struct.Struct(f"<4sIIQQ{EPOCH_PROOF_SIZE}s")  # magic, incarnation, epoch, ttl_ns, report_id, epoch_proof
DEATH_SIZE, GRANT_SIZE = DEATH.size + SEAL_SIZE, GRANT.size + SEAL_SIZE


@dataclass(frozen=True, slots=True)
class GrantNotice:
    """What `LeaseGranted` of the contracts says, to one start of an adapter."""

    incarnation: int
    epoch: int
    ttl_ns: int
    report_id: int
    epoch_proof: bytes = b""


def seal_death(key: bytes, incarnation: int) -> bytes:
    """The notice that this start of an adapter has ended. Args: key: of that start."""
    return _seal(key, DEATH.pack(DEATH_MAGIC, incarnation))


def claimed_death(datagram: bytes) -> int | None:
    """The incarnation that a death notice names; None if the datagram is none. It may be forged: `is_authentic`."""
    if len(datagram) != DEATH_SIZE:
        return None
    magic, incarnation = DEATH.unpack_from(datagram)
    return int(incarnation) if magic == DEATH_MAGIC else None


def seal_grant(key: bytes, notice: GrantNotice) -> bytes:
    """The notice that the lease is granted. Args: key: of the start that it is granted to."""
    words = (notice.incarnation, notice.epoch, notice.ttl_ns, notice.report_id, notice.epoch_proof)
    return _seal(key, GRANT.pack(GRANT_MAGIC, *words))


def open_grant(key: bytes, datagram: bytes) -> GrantNotice | None:
    """The grant that a datagram carries; None if it is none, or was not made with this key."""
    if len(datagram) != GRANT_SIZE:
        return None
    magic, incarnation, epoch, ttl_ns, report_id, epoch_proof = GRANT.unpack_from(datagram)
    if magic != GRANT_MAGIC or not is_authentic(key, datagram):
        return None
    return GrantNotice(incarnation, epoch, ttl_ns, report_id, epoch_proof if any(epoch_proof) else b"")


def is_authentic(key: bytes, datagram: bytes) -> bool:
    """Whether a notice was made with this key."""
    return hmac.compare_digest(datagram, _seal(key, datagram[:-SEAL_SIZE]))


def _seal(key: bytes, body: bytes) -> bytes:
    return body + hmac.digest(key, body, "sha256")
