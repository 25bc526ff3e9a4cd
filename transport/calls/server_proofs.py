"""What the admin server signs so that others can pass it on: proof that the server, and not its bearer, says it.

The server signs with the key that signs tokens (Ed25519), so a party that knows it can check its proofs. What a
proof says is not in it: the receiver rebuilds the statement from what the bearer claims, and the signature fits only if
the server said just that. Each kind of statement begins with words of its own, so no signature serves two purposes, nor
can it be taken for a token's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tandemfeed.transport.calls.tokens import KEY_ID_SIZE, key_id_of
from tandemfeed.v1 import common_pb2

SIGNATURE_SIZE = 64
PROOF_SIZE = KEY_ID_SIZE + SIGNATURE_SIZE
Prover = Callable[[bytes], bytes]  # makes the proof of a statement
_EPOCH = struct.Struct("<HHI")  # feed_id, adapter_id, epoch
_START = struct.Struct("<HHI")  # feed_id, adapter_id, incarnation


def epoch_statement(feed_id: int, adapter_id: int, epoch: int) -> bytes:
    """This adapter was granted this epoch."""
    return b"tandemfeed 2 epoch\0" + _EPOCH.pack(feed_id, adapter_id, epoch)


def start_statement(feed_id: int, adapter_id: int, incarnation: int, salt: bytes, public_key: bytes) -> bytes:
    """This start of an adapter was registered."""
    return b"tandemfeed 2 start\0" + _START.pack(feed_id, adapter_id, incarnation) + salt + public_key


def prove(statement: bytes, key: Ed25519PrivateKey) -> bytes:
    """The proof of a statement: PROOF_SIZE bytes."""
    return bytes.fromhex(key_id_of(key.public_key().public_bytes_raw())) + key.sign(statement)


class ProofVerifier:
    """Checks proofs with the admin server's public keys. Safe to call from any thread."""

    def __init__(self, keys: Iterable[common_pb2.TokenKey] = ()) -> None:
        self._keys: dict[bytes, Ed25519PublicKey] = {}
        self.trust(keys)

    def trust(self, keys: Iterable[common_pb2.TokenKey]) -> None:
        """Accept just these keys from now on. What a proof said before stays true."""
        self._keys = {
            bytes.fromhex(key_id_of(each.public_key)): Ed25519PublicKey.from_public_bytes(each.public_key)
            for each in keys
        }  # replaced as a whole, because readers do not lock

    def is_known(self, proof: bytes) -> bool:
        """True if the proof names a key that is accepted now; to find that out costs nothing."""
        return len(proof) == PROOF_SIZE and proof[:KEY_ID_SIZE] in self._keys

    def is_proved(self, statement: bytes, proof: bytes) -> bool:
        """True if the server made this proof of this statement. Takes some 130 µs."""
        key = self._keys.get(proof[:KEY_ID_SIZE])
        if key is None or len(proof) != PROOF_SIZE:
            return False
        try:
            key.verify(proof[KEY_ID_SIZE:], statement)
        except InvalidSignature:
            return False
        return True
