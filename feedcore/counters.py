"""Every counter of the cores, declared once with a sentence. Metrics, logs and the CLI read this list."""

from __future__ import annotations

from enum import Enum

from tandemfeed.feedcore.wire.refusal import Refusal


class Counter(Enum):
    """The value is the sentence shown as metric help."""

    __hash__ = object.__hash__  # members are singletons, and Enum's own hash is Python code on the hot path

    SOURCE_PACKETS = "Source packets received and accepted."
    SOURCE_MESSAGES_LOST = "Source messages declared lost after the gap limit."
    SOURCE_GAP_REQUESTS = "Requests to the source journal; one that several channels make counts in each."
    RUNS_DECIDED = "Runs decided as active."
    RUNS_FOLLOWED = "Runs applied as backup."
    RUN_REQUESTS = "Requests to the active for missed runs."
    SNAPSHOTS_INSTALLED = "Conversion-state snapshots installed."
    SNAPSHOTS_REFUSED = "Snapshots whose digests did not match their conversion state."
    BUCKETS_SET = "Buckets of conversion state set to the active's values."
    PEER_ANSWERS_REFUSED = "States and answers of other adapters that were refused, also counted by reason."
    PACKETS_PROVISIONAL = "Output packets transmitted without a lease."
    PACKETS_UNACKED = "Packets of an acked feed transmitted without an acknowledgement."
    HAND_OVERS = "Epochs handed over to another adapter."
    LEASE_BY_CONSENT = "Times the other adapters' consent extended a lease."
    STATES_RESUMED = "Restarts that continued from this adapter's own journal instead of a snapshot."
    MESSAGES_OUT = "Application messages transmitted, retransmissions not counted."
    PACKETS_OUT = "Output packets transmitted, heartbeats included."
    STALE_EPOCH_PACKETS = "Packets of an epoch that a newer epoch has ended."
    DIGESTS_EQUAL = "Conversion-state comparisons that agreed."
    DIGESTS_UNEQUAL = "Conversion-state comparisons that found a difference."
    LEASE_LAPSED = "Times this adapter stopped transmitting as active because its lease ran out."
    OWN_PAUSES = "Pauses of this adapter's own process; it judges no other by the silence meanwhile."
    INBOX_DROPPED = "Datagrams dropped because a subscription's inbox was full; they are requested like lost ones."
    MERGE_DELIVERED = "Application messages delivered."
    MERGE_DUPLICATES = "Packets with no message that was not delivered already."
    MERGE_RENUMBERED = "Messages dropped because their source message was already delivered under an older epoch."
    MERGE_HELD = "Packets that arrived early and were held."
    MERGE_REPLAY_REQUESTS = "Requests to replay services."
    MERGE_GAPS = "Messages declared missing."
    MERGE_SILENT_GAPS = "Source messages skipped because the next message_seq shows that they made no message."
    MERGE_NOT_BEGUN = "Provisional runs skipped because they may precede the start of the subscription."
    MERGE_PROVISIONAL = "Application messages delivered provisionally, before they were numbered."
    MERGE_UNCONFIRMED = "Messages declared missing because no two adapters' copies agreed (confirm=2)."
    MERGE_DIVERGED = "Copies of the same messages that differed."
    MERGE_NOT_COMPARED = "Copies that arrived too late to be compared with the delivered message."


class CounterSet:
    """Plain counts, one per `Counter` and one per `Refusal`; the shell exports them."""

    __slots__ = ("counts", "refusals")

    def __init__(self) -> None:
        self.counts: dict[Counter, int] = dict.fromkeys(Counter, 0)
        self.refusals: dict[Refusal, int] = dict.fromkeys(Refusal, 0)

    def add(self, counter: Counter, amount: int = 1) -> None:
        """Add to one counter."""
        self.counts[counter] += amount

    def refuse(self, reason: Refusal, packet_count: int = 1) -> None:
        """Count refused packets."""
        self.refusals[reason] += packet_count
