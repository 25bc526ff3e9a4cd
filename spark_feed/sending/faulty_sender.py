"""Sends what a fault injector makes of each datagram."""

from __future__ import annotations

import logging
import time

from tandemfeed.spark_feed.sending.faults import FaultInjector, FaultPlan, Sent
from tandemfeed.transport.multicast.sockets import MulticastSender

LOG = logging.getLogger(__name__)


class FaultySender:
    """In the place of a sender.

    Args:
        seed: of the random choices.
    """

    def __init__(self, sender: MulticastSender, plan: FaultPlan, seed: int) -> None:
        self._sender, self._injector = sender, FaultInjector(plan, seed, time.monotonic_ns())
        LOG.warning("the gateway makes faults on purpose: %s, seed %d", plan, seed)

    def send(self, group: bytes, datagram: bytes) -> None:
        """Send a datagram, or what a fault makes of it."""
        for each in self._injector.on_datagram(Sent(group, datagram), time.monotonic_ns()):
            self._sender.send(*each)

    def close(self) -> None:
        """Send what is held back, and close the sender."""
        for each in self._injector.rest():
            self._sender.send(*each)
        LOG.info("faults made", extra={"faults": self._injector.counts})
        self._sender.close()
