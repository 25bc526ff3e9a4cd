"""What this adapter can prove about epochs: the proofs that the admin server and other adapters gave it.

In the loop's thread. It decides nothing: a proof that checks out goes to the engine, which believes no epoch without.
"""

from __future__ import annotations

from collections.abc import Iterable

from tandemfeed.feedcore.counters import CounterSet
from tandemfeed.feedcore.replica.effects import AdapterEffect, ShowEpochProof
from tandemfeed.feedcore.replica.engine import AdapterEngine
from tandemfeed.feedcore.wire.refusal import PacketRefused
from tandemfeed.transport.calls.server_proofs import ProofVerifier
from tandemfeed.transport.sealing.epoch_proofs import EpochProofs
from tandemfeed.v1 import common_pb2


class EpochKnowledge:
    """The proofs of one adapter.

    Args:
        keys: the admin server's, which verify them.
    """

    def __init__(self, engine: AdapterEngine, counters: CounterSet, keys: Iterable[common_pb2.TokenKey]) -> None:
        self._engine, self._counters = engine, counters
        self._verifier = ProofVerifier(keys)
        self._proofs = EpochProofs(engine.config.feed_id, self._verifier)

    def trust(self, keys: Iterable[common_pb2.TokenKey]) -> None:
        """The admin server announces the keys that verify its proofs."""
        self._verifier.trust(keys)

    def keep(self, datagram: bytes) -> None:
        """The admin server itself gave this proof; empty: it gave none."""
        self._proofs.keep(datagram)

    def take(self, datagram: bytes, sender: str, now_ns: int) -> list[AdapterEffect]:
        """Another adapter passed this proof on. Args: sender: where it came from."""
        try:
            proof = self._proofs.take(datagram, self._engine.vouched, sender, now_ns)
        except PacketRefused as refused:
            self._counters.refuse(refused.reason)
            return []
        return [] if proof is None else self._engine.on_epoch_vouched(proof.epoch, proof.adapter_id, now_ns)

    def to_show(self, shown: ShowEpochProof) -> bytes | None:
        """The datagram that proves this; None: it is not here."""
        proof = self._proofs.of(shown.epoch, shown.adapter_id)
        return None if proof is None else proof.datagram

    @property
    def newest(self) -> bytes:
        """The proof of the newest epoch that this adapter believes; empty: it has none."""
        vouched = self._engine.vouched
        proof = self._proofs.of(vouched.newest, vouched.owner_of(vouched.newest))
        return b"" if proof is None else proof.datagram
