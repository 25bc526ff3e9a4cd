"""Makes the proofs that adapters hold their epochs, as the datagrams that adapters pass on. Pure but for `prove`.

A proof is made when an epoch is granted or offered, and says nothing else: not for how long, nor that the adapter still
holds it. Made again, it is the same.
"""

from __future__ import annotations

from tandemfeed.transport.calls.server_proofs import Prover, epoch_statement
from tandemfeed.transport.sealing.epoch_proofs import encode_epoch_proof

REMEMBERED = 8  # the present epoch is announced again and again; a signature costs 40 µs


class EpochProver:
    """Args: prove: signs a statement with the cluster's key; empty if this server cannot."""

    def __init__(self, feed_id: int, prove: Prover) -> None:
        self._feed_id, self._prove = feed_id, prove
        self._made: dict[tuple[int, int], bytes] = {}

    def datagram(self, epoch: int, adapter_id: int) -> bytes:
        """The proof that this adapter was granted this epoch; empty if there is none."""
        if epoch <= 0 or adapter_id <= 0:
            return b""
        made = self._made.get((epoch, adapter_id))
        if made is None:
            proof = self._prove(epoch_statement(self._feed_id, adapter_id, epoch))
            made = encode_epoch_proof(self._feed_id, adapter_id, epoch, proof) if proof else b""
            self._made[epoch, adapter_id] = made
            if len(self._made) > REMEMBERED:
                del self._made[min(self._made)]
        return made
