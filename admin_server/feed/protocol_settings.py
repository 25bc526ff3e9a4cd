"""The protocol settings of a feed's adapters, as the cluster file states them."""

from __future__ import annotations

from dataclasses import dataclass

PUBLISH_MODES = ("async", "acked")
SILENCE_MODES = ("proceed", "hold")
BELOW_THRESHOLD = "below_threshold"
FAIL_POLICIES = ("lowest", "lower_than_any", BELOW_THRESHOLD)
SESSION_STATES = ("reset", "carry")


@dataclass(frozen=True, slots=True)
class ProtocolSettings:
    """The protocol settings of a feed's adapters.

    Attributes:
        publish: "async": transmit immediately; "acked": transmit only what a backup has acknowledged.
        on_silence: with no active and no admin server, a backup forwards provisionally ("proceed") or waits ("hold").
        fail_policy: which backup asks to be failed when one of them is repeatedly out of sync.
        fail_threshold: the health score below which a backup fails, for "below_threshold"; else 0.
        session_state: the conversion state at the start of a session: empty ("reset"), or as the previous session left
            it ("carry").
        session_grace_ns: how long a session whose end was not received continues after a later session appeared.
    """

    publish: str = PUBLISH_MODES[0]
    on_silence: str = SILENCE_MODES[0]
    fail_policy: str = FAIL_POLICIES[0]
    fail_threshold: float = 0.0
    session_state: str = SESSION_STATES[0]
    session_grace_ns: int = 5_000_000_000
