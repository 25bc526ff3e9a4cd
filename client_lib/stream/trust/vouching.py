"""What the admin server vouches for, for one subscription: in its grants, and in proofs of epochs, which adapters pass
on. Each channel judges by it what adapters say of their numbers (`feedcore.merge.belief`).

For the loop's thread.
"""

from __future__ import annotations

from tandemfeed.client_lib.login.grant import Grant
from tandemfeed.feedcore.counters import CounterSet
from tandemfeed.feedcore.merge.belief import Belief
from tandemfeed.feedcore.vouched_epochs import VouchedEpochs
from tandemfeed.transport.calls.server_proofs import ProofVerifier
from tandemfeed.transport.sealing.epoch_proofs import EpochProof, EpochProofs


class Vouching:
    """One subscription's.

    Attributes:
        beliefs: by channel.
    """

    def __init__(self, grant: Grant, counters: CounterSet) -> None:
        self.beliefs: dict[int, Belief] = {}
        self._counters, self._session = counters, grant.session
        self._vouched = VouchedEpochs()
        self._verifier = ProofVerifier(grant.proof_keys)
        self._proofs = EpochProofs(grant.feed_id, self._verifier)

    def add(self, channel_id: int) -> Belief:
        """Begin to judge a channel."""
        belief = self.beliefs[channel_id] = Belief(self._counters, self._vouched, self._session)
        return belief

    def remove(self, channel_id: int) -> None:
        """End it."""
        self.beliefs.pop(channel_id, None)

    def apply(self, grant: Grant, now_ns: int) -> None:
        """The server names the active, its epoch and the feed's session."""
        self._verifier.trust(grant.proof_keys)
        self._session = max(self._session, grant.session)
        for belief in self.beliefs.values():
            belief.on_described(self._session, now_ns)
        self._note(grant.epoch, grant.active_adapter_id, now_ns)

    def on_proof(self, proof: EpochProof, sender: str, now_ns: int) -> None:
        """An adapter passed this on.

        Raises:
            PacketRefused: it proves nothing.
        """
        if self._proofs.take(proof.datagram, self._vouched, sender, now_ns) is not None:
            self._note(proof.epoch, proof.adapter_id, now_ns)

    def _note(self, epoch: int, adapter_id: int, now_ns: int) -> None:
        if self._vouched.vouch(epoch, adapter_id):
            for belief in self.beliefs.values():
                belief.on_vouched(now_ns)
