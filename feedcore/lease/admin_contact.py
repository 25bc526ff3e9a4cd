"""An adapter's contact with the admin server, and its promises while out of contact (docs/protocol.md clause 6.7)."""

from __future__ import annotations

from tandemfeed.feedcore.lease.peers import ConsentConfig


class AdminContact:
    """When this adapter last heard an admin server, and until when it abstains from grants.

    Attributes:
        abstains_until_ns: when the promise to the active ends.
    """

    def __init__(self, config: ConsentConfig, previous_process_ended_ns: int | None, now_ns: int) -> None:
        self.abstains_until_ns = (
            0 if previous_process_ended_ns is None else previous_process_ended_ns + config.abstain_ns
        )
        self._config = config
        self._heard_at_ns = now_ns
        self._is_broken = False  # the stream ended, and no order has arrived since
        self._has_started = False  # an admin server has been in contact while every channel here was in sync
        self._settles_until_ns = 0
        self._epoch_in_contact = 0  # the newest epoch known when an admin server was last heard
        self._epoch_before_outage = 0

    def on_message(self, epoch: int, now_ns: int, *, is_caught_up: bool) -> bool:
        """Note a message from an admin server. True if the server had been out of contact.

        Once back in contact, this adapter settles for as long as it was out of contact, because the active may need as
        long to reconnect. A slow start is not an outage: on a busy machine, messages that arrive in time are read late.

        Args:
            epoch: the newest epoch that this adapter knows.
            is_caught_up: every channel is SYNCHRONIZED or ACTIVE.
        """
        is_back = not self.is_in_contact(now_ns)
        if is_back and self._has_started:
            self._settles_until_ns = now_ns + min(now_ns - self._heard_at_ns, self._config.settle_ns)
            self._epoch_before_outage = self._epoch_in_contact
        self._heard_at_ns, self._epoch_in_contact = now_ns, epoch
        self._is_broken, self._has_started = False, self._has_started or is_caught_up
        return is_back

    def on_disconnected(self) -> None:
        """Note that the stream to the server broke."""
        self._is_broken = True

    def on_own_pause(self, pause_ns: int) -> None:
        """This process was paused, and so heard nothing."""
        self._heard_at_ns += pause_ns

    def is_in_contact(self, now_ns: int) -> bool:
        """True while an admin server is in contact."""
        return not self._is_broken and now_ns - self._heard_at_ns < self._config.contact_ns

    def is_settling(self, epoch: int, now_ns: int) -> bool:
        """True while the server has been back for so short a time that other adapters may still be reconnecting.

        False if `epoch`, the newest epoch that this adapter knows, began during the outage: then a server granted it to
        another adapter, so only this adapter was out of contact.
        """
        return now_ns < self._settles_until_ns and epoch <= self._epoch_before_outage

    def abstain(self, now_ns: int) -> None:
        """Note that this adapter promises, from now on, to abstain."""
        self.abstains_until_ns = now_ns + self._config.abstain_ns
