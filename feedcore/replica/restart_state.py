"""What an adapter's journal says of its former life: how far a restarted channel can continue from it by itself.

A restarted adapter stands where its journal ends: at the saved state, moved on by the decisions that it transmitted
since, as the source messages come in again. It asks the active for the decisions after that, and takes a whole
snapshot only if that fails. Pure bookkeeping: `feedcore.replica.joining` asks and decides.
"""

from __future__ import annotations

from feedcore.wire.position import FIRST_SEQ

TRIES_MAX = 4  # an active that does not answer these is asked for a snapshot


class RestartState:
    """The former life of one channel.

    Attributes:
        is_usable: the channel stands where the former life ended.
        transmitted_end: one past the last `input_seq` the former life transmitted: up to there nothing is sent again.
    """

    def __init__(self) -> None:
        self.is_usable = False
        self.transmitted_end = FIRST_SEQ
        self._tries_left = TRIES_MAX

    def adopt(self, transmitted_end: int) -> None:
        """The journal's newest entry was installed."""
        self.is_usable, self.transmitted_end = True, transmitted_end

    def forget(self) -> None:
        """It cannot be used."""
        self.is_usable, self.transmitted_end = False, FIRST_SEQ

    def take_try(self) -> bool:
        """True if the active may be asked for what follows, once more."""
        if self.is_usable:
            self._tries_left -= 1
            if self._tries_left < 0:
                self.forget()
        return self.is_usable
