"""The datagram with which adapters pass on the admin server's proof that an adapter holds an epoch.

Every receiver of a channel needs it before it believes the epoch (docs/protocol.md clause 6.11): adapters and readers.
It travels in clear, because it is no secret and proves itself. A flood of invented proofs costs a verification each, so
only so many bad ones of one sender are verified in a second.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from tandemfeed.feedcore.token_bucket import TokenBucket
from tandemfeed.feedcore.vouched_epochs import VouchedEpochs
from tandemfeed.feedcore.wire.layout import Layout
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal
from tandemfeed.transport.calls.server_proofs import PROOF_SIZE, ProofVerifier, epoch_statement

PROOF_MAGIC = b"TFE1"
PROOF_LAYOUT = Layout(
    ("magic", "4s"),
    ("version", "B"),
    ("reserved", "B"),  # 0
    ("feed_id", "H"),
    ("adapter_id", "H"),
    ("reserved_2", "H"),  # 0
    ("epoch", "I"),
)
HEADER = PROOF_LAYOUT.struct
DATAGRAM_SIZE = PROOF_LAYOUT.size + PROOF_SIZE
VERSION = 1
FAILED_PER_SECOND = 20  # of one sender, as for signatures: at 130 µs each, a quarter of a percent of a processor
SENDERS_REMEMBERED = 64
PROOFS_REMEMBERED = 16


class EpochProof(NamedTuple):
    """A proof as it travels.

    Attributes:
        datagram: what was received, to be passed on as it is.
    """

    feed_id: int
    adapter_id: int
    epoch: int
    proof: bytes
    datagram: bytes


def encode_epoch_proof(feed_id: int, adapter_id: int, epoch: int, proof: bytes) -> bytes:
    """The datagram. Args: proof: of `epoch_statement` with the same numbers."""
    return HEADER.pack(PROOF_MAGIC, VERSION, 0, feed_id, adapter_id, 0, epoch) + proof


def decode_epoch_proof(datagram: bytes) -> EpochProof:
    """What a datagram claims.

    Raises:
        PacketRefused: it is not such a datagram.
    """
    if len(datagram) != DATAGRAM_SIZE:
        raise PacketRefused(Refusal.TRUNCATED, f"{len(datagram)} bytes; a proof of an epoch has {DATAGRAM_SIZE}")
    magic, version, _, feed_id, adapter_id, _, epoch = HEADER.unpack_from(datagram)
    if magic != PROOF_MAGIC:
        raise PacketRefused(Refusal.FOREIGN, "not a proof of an epoch")
    if version != VERSION:
        raise PacketRefused(Refusal.VERSION, f"version {version} of a proof of an epoch, expected {VERSION}")
    return EpochProof(feed_id, adapter_id, epoch, datagram[HEADER.size :], datagram)


class EpochProofs:
    """The proofs of one feed that a process has, and their verification. One thread at a time.

    Attributes:
        verifier: the keys that are accepted.
    """

    def __init__(self, feed_id: int, verifier: ProofVerifier) -> None:
        self.verifier = verifier
        self._feed_id = feed_id
        self._known: dict[int, EpochProof] = {}  # by epoch; verified
        self._senders: OrderedDict[str, TokenBucket] = OrderedDict()

    def of(self, epoch: int, adapter_id: int) -> EpochProof | None:
        """The verified proof that this adapter holds this epoch, if it is here."""
        found = self._known.get(epoch)
        return found if found is not None and found.adapter_id == adapter_id else None

    def keep(self, datagram: bytes) -> None:
        """Keep what the admin server itself gave."""
        if datagram:
            self._keep(decode_epoch_proof(datagram))

    def take(self, datagram: bytes, vouched: VouchedEpochs, sender: str, now_ns: int) -> EpochProof | None:
        """Take a datagram from anybody. Returns a proof that says something new; None: it is known.

        Args:
            vouched: what is known.
            sender: the address it came from.

        Raises:
            PacketRefused: it proves nothing.
        """
        claimed = decode_epoch_proof(datagram)
        if claimed.feed_id != self._feed_id:
            raise PacketRefused(Refusal.WRONG_FEED, f"feed {claimed.feed_id}, expected {self._feed_id}")
        is_known = claimed.epoch <= vouched.newest and vouched.owner_of(claimed.epoch) == claimed.adapter_id
        if self.of(claimed.epoch, claimed.adapter_id) is not None or (is_known and claimed.epoch < vouched.newest):
            return None
        if not self.verifier.is_known(claimed.proof):
            raise PacketRefused(Refusal.UNKNOWN_KEY, "a proof of an epoch under a key that was not announced")
        budget = self._budget(sender, now_ns)
        if budget.wait_ns(now_ns):
            raise PacketRefused(Refusal.UNVERIFIED, f"too many bad proofs of epochs from {sender or 'one sender'}")
        statement = epoch_statement(self._feed_id, claimed.adapter_id, claimed.epoch)
        if not self.verifier.is_proved(statement, claimed.proof):
            budget.spend(1, now_ns)
            raise PacketRefused(Refusal.BAD_SIGNATURE, f"the server did not grant epoch {claimed.epoch} to its sender")
        self._keep(claimed)
        return None if is_known else claimed

    def _keep(self, proof: EpochProof) -> None:
        self._known[proof.epoch] = proof
        if len(self._known) > PROOFS_REMEMBERED:
            del self._known[min(self._known)]

    def _budget(self, sender: str, now_ns: int) -> TokenBucket:
        found = self._senders.pop(sender, None) or TokenBucket(FAILED_PER_SECOND, FAILED_PER_SECOND, now_ns)
        self._senders[sender] = found
        if len(self._senders) > SENDERS_REMEMBERED:
            self._senders.popitem(last=False)
        return found
