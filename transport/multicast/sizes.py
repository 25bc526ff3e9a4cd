"""How long a datagram may be."""

from __future__ import annotations

from tandemfeed.feedcore.wire.output_packet import DATAGRAM_SIZE_MAX


class DatagramTooLong(ValueError):
    """The caller made a datagram that the transport must not send. This is a bug in the caller."""


def check_size_max(datagram_size_max: int) -> None:
    """Refuse a limit that not every receiver could take.

    Raises:
        DatagramTooLong: the text says why.
    """
    if not 0 < datagram_size_max <= DATAGRAM_SIZE_MAX:
        raise DatagramTooLong(
            f"datagram_size_max is {datagram_size_max}; libzmq, with which any receiver may receive, carries at most "
            f"{DATAGRAM_SIZE_MAX} bytes"
        )
