"""ZeroMQ contexts that are closed by name: no finaliser of ours waits.

pyzmq's own context closes its sockets and waits for libzmq's threads when it is collected as garbage, in whichever
thread that happens: an object that was dropped then stops a thread that has nothing to do with it, for good if a socket
is still in use. A context of this module that was not closed stays open instead, and a ResourceWarning says so.
"""

from __future__ import annotations

import warnings

import zmq


class Context(zmq.Context[zmq.Socket[bytes]]):
    """A context, to be closed by `close` or `with`, after its sockets."""

    def close(self) -> None:
        """Close the sockets that are still open, drop what they have not sent, and end libzmq's threads."""
        self.destroy(linger=0)

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self.closed:
            warnings.warn(f"{self!r} was not closed; its threads and sockets stay", ResourceWarning, stacklevel=2)
