"""Who is active, as a backup knows it, and whether it is still to be heard."""

from __future__ import annotations


class ActiveView:
    """The active of one channel's feed, by its own word, its peers', or the admin server's.

    Attributes:
        adapter_id: whom to ask; 0 as long as nobody is known.
        heard_at_ns: when it last spoke, by output or sync channel.
    """

    def __init__(self, now_ns: int) -> None:
        self.adapter_id = 0
        self.heard_at_ns = now_ns
        self._epoch = 0

    def know(self, adapter_id: int, epoch: int) -> bool:
        """Somebody says who is active in an epoch (0: nobody); older news changes nothing. True if it is another."""
        if epoch < self._epoch or (adapter_id == 0 and epoch == self._epoch):
            return False
        is_another = adapter_id != self.adapter_id
        self.adapter_id, self._epoch = adapter_id, epoch
        return is_another

    def hear(self, adapter_id: int, epoch: int, now_ns: int) -> bool:
        """The active itself speaks. True if it is another than was known."""
        self.heard_at_ns = now_ns
        is_known = epoch == self._epoch and adapter_id == self.adapter_id
        return not is_known and self.know(adapter_id, epoch)

    def silent_ns(self, now_ns: int) -> int:
        """For how long it has not been heard."""
        return now_ns - self.heard_at_ns
