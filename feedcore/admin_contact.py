"""An adapter's contact with an admin server, and what it promises while it has none (docs/protocol.md clause 6.7)."""

from __future__ import annotations

from feedcore.peers import ConsentConfig


class AdminContact:
    """When an admin server was heard, and until when this adapter abstains from grants.

    Attributes:
        abstains_until_ns: what was promised to the active holds until then.
    """

    def __init__(self, config: ConsentConfig, now_ns: int, *, has_former_life: bool) -> None:
        self.abstains_until_ns = now_ns + config.abstain_ns if has_former_life else 0
        self._config = config
        self._heard_at_ns: int | None = now_ns
        self._since_ns: int | None = None  # since it was lost for the last time

    def heard(self, now_ns: int) -> bool:
        """An admin server said something. True if it had been out of contact."""
        is_back = not self.stands(now_ns)
        if is_back:
            self._since_ns = now_ns
        self._heard_at_ns = now_ns
        return is_back

    def lost(self) -> None:
        """The stream to it broke."""
        self._heard_at_ns = None

    def stands(self, now_ns: int) -> bool:
        """True while an admin server is in contact."""
        return self._heard_at_ns is not None and now_ns - self._heard_at_ns < self._config.contact_ns

    def is_settling(self, now_ns: int) -> bool:
        """True while it is back for so short a time that others may still be on their way back."""
        return self._since_ns is not None and now_ns - self._since_ns < self._config.settle_ns

    def abstain(self, now_ns: int) -> None:
        """A promise leaves."""
        self.abstains_until_ns = now_ns + self._config.abstain_ns
