"""A planned hand-over in one channel: where the old epoch was given up, and when the heir begins (protocol 6.6)."""

from __future__ import annotations

from tandemfeed.feedcore.wire.position import MessageStreamState


class HandOver:
    """Ends of epochs, announced by this adapter or by others.

    Args:
        patience_ns: how long an heir waits for the end of the old epoch before it begins anyway.
    """

    def __init__(self, patience_ns: int) -> None:
        self._patience_ns = patience_ns
        self._ended: tuple[int, int] | None = None  # (epoch, its end)
        self._offer: tuple[int, int, int] | None = None  # (epoch, previous epoch, latest time when it begins)

    def on_ended(self, epoch: int, end_input_seq: int) -> None:
        """Note that an epoch was given up at this `input_seq`."""
        self._ended = epoch, end_input_seq

    def await_end(self, epoch: int, after_epoch: int, now_ns: int) -> None:
        """Wait to begin `epoch`, which this adapter holds, where `after_epoch` ends."""
        self._offer = epoch, after_epoch, now_ns + self._patience_ns

    def on_own_pause(self, pause_ns: int) -> None:
        """This process was paused, and could not hear that the old epoch ended: wait as much longer."""
        if self._offer is not None:
            epoch, after_epoch, until_ns = self._offer
            self._offer = epoch, after_epoch, until_ns + pause_ns

    @property
    def is_awaited(self) -> bool:
        """True while an epoch that this adapter holds has not begun here."""
        return self._offer is not None

    def next_deadline_ns(self) -> int | None:
        """The latest time when the epoch begins."""
        return None if self._offer is None else self._offer[2]

    def cancel(self) -> None:
        """Stop waiting for an epoch to begin."""
        self._offer = None

    def begin(self) -> None:
        """Note that a new epoch began here."""
        self._ended = self._offer = None

    def due_epoch(self, newest_epoch: int, applied_end: int, now_ns: int, *, is_blocked: bool) -> int | None:
        """The epoch to begin now, if any.

        Args:
            newest_epoch: the newest epoch with a known history.
            applied_end: one past the last `input_seq` applied.
            is_blocked: decisions, or the source messages that they need, are outstanding.
        """
        if self._offer is None:
            return None
        epoch, after_epoch, until_ns = self._offer
        is_caught_up = (
            self._ended is not None
            and self._ended[0] == newest_epoch == after_epoch
            and applied_end >= self._ended[1]
            and not is_blocked
        )
        return epoch if is_caught_up or now_ns >= until_ns else None

    def is_at_end(self, position: MessageStreamState) -> bool:
        """True if the epoch was given up at this position. Every adapter that stands there repeats the announcement."""
        return self._ended == (position.epoch, position.next_input_seq)
