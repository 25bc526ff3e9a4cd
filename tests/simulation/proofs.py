"""Proofs of epochs, as what the shells make of them: the admin server makes one for each grant and offer, adapters pass
them on, and everybody can tell a real one from an invented one, as by the server's signature."""

from __future__ import annotations

from typing import NamedTuple


class EpochProof(NamedTuple):
    """What the admin server signs: the adapter that an epoch was granted to."""

    epoch: int
    adapter_id: int


class ProofBook:
    """The proofs that the admin server has made."""

    def __init__(self) -> None:
        self._made: set[EpochProof] = set()

    def make(self, epoch: int, adapter_id: int) -> None:
        """The server grants or offers an epoch."""
        self._made.add(EpochProof(epoch, adapter_id))

    def is_genuine(self, proof: EpochProof) -> bool:
        """True if the server made it."""
        return proof in self._made
