"""The reasons to refuse a peer's packet. Refusals are counted by these reasons and never end a process."""

from __future__ import annotations

from enum import Enum


class Refusal(Enum):
    """The comment explains each reason; the value names the counter."""

    __hash__ = object.__hash__  # as in feedcore.counters

    TRUNCATED = "truncated"  # shorter than its header or its counts require
    FOREIGN = "foreign"  # a datagram of another protocol on this group and port
    VERSION = "version"  # a version this side does not speak
    WRONG_FEED = "wrong_feed"  # another feed's packet
    WRONG_CHANNEL = "wrong_channel"  # a channel this side has no key for
    WRONG_SESSION = "wrong_session"  # numbers of another trading day
    MALFORMED = "malformed"  # counts, runs or frames that contradict each other
    WRONG_ADAPTER = "wrong_adapter"  # an answer in another adapter's name
    UNKNOWN_STREAM = "unknown_stream"  # a source stream the feed does not have
    UNKNOWN_KEY = "unknown_key"  # sealed with a key this side does not hold
    FORGED = "forged"  # the seal does not open: not made by a holder of the key, or replayed as another adapter's
    REPLAYED = "replayed"  # a nonce that was seen before, or is too old to check
    UNANNOUNCED = "unannounced"  # sealed by a start of an adapter that the admin server has not announced
    UNVOUCHED = "unvouched"  # an epoch, a session or a role without proof from a party that may grant it
    UNTAGGED = "untagged"  # the decision tag is invalid: no adapter of the feed made the packet
    OUT_OF_WINDOW = "out_of_window"  # a packet counter far beyond what its adapter has signed
    UNSIGNED = "unsigned"  # its adapter's signature did not cover it in time
    BAD_SIGNATURE = "bad_signature"  # a signature that its adapter's key did not make
    UNVERIFIED = "unverified"  # a signature that was not verified, because too many before it were bad


class PacketRefused(Exception):
    """A peer's packet failed a check.

    Attributes:
        reason: the reason to count.
    """

    def __init__(self, reason: Refusal, detail: str) -> None:
        super().__init__(f"{reason.value}: {detail}")
        self.reason = reason
