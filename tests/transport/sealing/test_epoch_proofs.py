"""The datagram that proves an epoch: its bytes, and what a receiver believes."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tandemfeed.feedcore.vouched_epochs import VouchedEpochs
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal
from tandemfeed.transport.calls.notices.layout import EPOCH_PROOF_SIZE
from tandemfeed.transport.calls.server_proofs import ProofVerifier, epoch_statement, prove, start_statement
from tandemfeed.transport.sealing.epoch_proofs import (
    DATAGRAM_SIZE,
    FAILED_PER_SECOND,
    SENDERS_REMEMBERED,
    EpochProofs,
    decode_epoch_proof,
    encode_epoch_proof,
)
from tandemfeed.v1 import common_pb2

KEY, OTHER_KEY = (Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2))
FEED, SECOND = 7, 1_000_000_000
GOLDEN = (
    "54464531010007000300000005000000"  # magic, version 1, feed 7, adapter 3, epoch 5
    "34750f98bd59fcfc"  # names the key
    "a0fe497b1a509faa4121543e44a35f77eb22371769b7be6805d8a51901d227db"  # the signature
    "16b58cc0885015bc0e57d0498b247d6bcfa8bfb3f43bf366921d312dd9339803"
)


def announced(key: Ed25519PrivateKey) -> common_pb2.TokenKey:
    return common_pb2.TokenKey(public_key=key.public_key().public_bytes_raw())


def proof_of(epoch: int, adapter_id: int, *, key: Ed25519PrivateKey = KEY, feed_id: int = FEED) -> bytes:
    proof = prove(epoch_statement(feed_id, adapter_id, epoch), key)
    return encode_epoch_proof(feed_id, adapter_id, epoch, proof)


def proofs() -> EpochProofs:
    return EpochProofs(FEED, ProofVerifier([announced(KEY)]))


def taken(receiver: EpochProofs, datagram: bytes, vouched: VouchedEpochs | None = None, sender: str = "a") -> bool:
    """True if the proof said something new."""
    return receiver.take(datagram, vouched or VouchedEpochs(), sender, 0) is not None


def test_the_bytes_of_a_proof() -> None:
    datagram = proof_of(5, 3)
    assert len(datagram) == DATAGRAM_SIZE == EPOCH_PROOF_SIZE
    assert datagram.hex() == GOLDEN
    decoded = decode_epoch_proof(datagram)
    assert (decoded.feed_id, decoded.adapter_id, decoded.epoch) == (FEED, 3, 5)
    assert encode_epoch_proof(FEED, 3, 5, decoded.proof) == decoded.datagram == datagram


def test_a_genuine_proof_is_believed_once_and_passed_on_as_it_is() -> None:
    receiver, vouched = proofs(), VouchedEpochs()
    datagram = proof_of(5, 3)
    found = receiver.take(datagram, vouched, "a", 0)
    assert found is not None
    vouched.vouch(found.epoch, found.adapter_id)
    assert not taken(receiver, datagram, vouched)
    known = receiver.of(5, 3)
    assert known is not None
    assert known.datagram == datagram
    assert receiver.of(5, 4) is None


def test_a_proof_of_what_the_server_has_announced_is_kept_to_be_passed_on() -> None:
    receiver, vouched = proofs(), VouchedEpochs()
    vouched.vouch(5, 3)
    assert not taken(receiver, proof_of(5, 3), vouched)
    assert receiver.of(5, 3) is not None


FORGED = {
    "another epoch": lambda: proof_of(5, 3)[:12] + (2**32 - 1).to_bytes(4, "little") + proof_of(5, 3)[16:],
    "another adapter": lambda: proof_of(5, 3)[:8] + (4).to_bytes(2, "little") + proof_of(5, 3)[10:],
    "another feed's": lambda: encode_epoch_proof(FEED, 3, 5, prove(epoch_statement(8, 3, 5), KEY)),
    "a start's": lambda: encode_epoch_proof(FEED, 3, 5, prove(start_statement(FEED, 3, 5, b"", b""), KEY)),
    "a changed signature": lambda: proof_of(5, 3)[:-1] + bytes([proof_of(5, 3)[-1] ^ 1]),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_proof_that_the_server_did_not_make_is_refused(what: str) -> None:
    receiver = proofs()
    with pytest.raises(PacketRefused) as refused:
        taken(receiver, FORGED[what]())
    assert refused.value.reason is Refusal.BAD_SIGNATURE
    assert receiver.of(5, 3) is None


def test_a_proof_of_another_key_feed_version_or_protocol_is_refused_without_verification() -> None:
    receiver = proofs()
    cases = {
        Refusal.UNKNOWN_KEY: proof_of(5, 3, key=OTHER_KEY),
        Refusal.WRONG_FEED: proof_of(5, 3, feed_id=8),
        Refusal.VERSION: proof_of(5, 3)[:4] + b"\2" + proof_of(5, 3)[5:],
        Refusal.FOREIGN: b"TFD1" + proof_of(5, 3)[4:],
        Refusal.TRUNCATED: proof_of(5, 3)[:-1],
    }
    for reason, datagram in cases.items():
        for _ in range(2 * FAILED_PER_SECOND):
            with pytest.raises(PacketRefused) as refused:
                taken(receiver, datagram)
            assert refused.value.reason is reason


def test_a_key_that_is_announced_later_is_accepted_from_then_on() -> None:
    receiver = proofs()
    receiver.verifier.trust([announced(OTHER_KEY)])
    assert taken(receiver, proof_of(5, 3, key=OTHER_KEY))
    with pytest.raises(PacketRefused):
        taken(receiver, proof_of(6, 3))


def test_a_flood_of_bad_proofs_costs_few_verifications_and_does_not_stop_another_sender() -> None:
    receiver = proofs()
    bad, reasons = FORGED["a changed signature"](), []
    for _ in range(5 * FAILED_PER_SECOND):
        with pytest.raises(PacketRefused) as refused:
            taken(receiver, bad, sender="forger")
        reasons.append(refused.value.reason)
    assert reasons.count(Refusal.BAD_SIGNATURE) <= FAILED_PER_SECOND + 1
    assert reasons[-1] is Refusal.UNVERIFIED
    assert taken(receiver, proof_of(6, 2), sender="the new active")
    later = receiver.take(proof_of(7, 2), VouchedEpochs(), "forger", SECOND)
    assert later is not None, "a second later it is verified again"


def test_the_memory_of_senders_is_bounded() -> None:
    receiver = proofs()
    for number in range(3 * SENDERS_REMEMBERED):
        with pytest.raises(PacketRefused):
            taken(receiver, FORGED["a changed signature"](), sender=str(number))
    assert len(receiver._senders) == SENDERS_REMEMBERED
