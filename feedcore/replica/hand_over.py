"""A planned hand-over, as one channel sees it: where an epoch was given up, and when its heir begins (protocol 6.6)."""

from __future__ import annotations

from tandemfeed.feedcore.wire.position import MessageStreamState


class HandOver:
    """Ends of epochs, said by this adapter or heard from others.

    Args:
        patience_ns: how long an heir may lack the end of the epoch before it begins all the same.
    """

    def __init__(self, patience_ns: int) -> None:
        self._patience_ns = patience_ns
        self._ended: tuple[int, int] | None = None  # (epoch, its end)
        self._offer: tuple[int, int, int] | None = None  # (epoch, the one before, when it begins at the latest)

    def on_ended(self, epoch: int, end_input_seq: int) -> None:
        """An epoch was given up at this `input_seq`."""
        self._ended = epoch, end_input_seq

    def await_end(self, epoch: int, after_epoch: int, now_ns: int) -> None:
        """This adapter holds `epoch`, which begins where `after_epoch` ends."""
        self._offer = epoch, after_epoch, now_ns + self._patience_ns

    @property
    def is_awaited(self) -> bool:
        """True while an epoch that this adapter holds has not begun here."""
        return self._offer is not None

    def next_deadline_ns(self) -> int | None:
        """When the epoch begins at the latest."""
        return None if self._offer is None else self._offer[2]

    def cancel(self) -> None:
        """Nothing is waited for any more."""
        self._offer = None

    def begin(self) -> None:
        """A new epoch began here."""
        self._ended = self._offer = None

    def due_epoch(self, newest_epoch: int, applied_end: int, now_ns: int, *, is_blocked: bool) -> int | None:
        """The epoch to begin now, if any.

        Args:
            newest_epoch: the newest whose history is known.
            applied_end: one past the last `input_seq` applied.
            is_blocked: decisions are outstanding.
        """
        if self._offer is None:
            return None
        epoch, after_epoch, until_ns = self._offer
        is_level = (
            self._ended is not None
            and self._ended[0] == newest_epoch == after_epoch
            and applied_end >= self._ended[1]
            and not is_blocked
        )
        return epoch if is_level or now_ns >= until_ns else None

    def is_at_end(self, position: MessageStreamState) -> bool:
        """True if this is where the epoch was given up: every adapter that stands there repeats it."""
        return self._ended == (position.epoch, position.next_input_seq)
