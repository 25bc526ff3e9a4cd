"""A listening TCP socket that can be deaf for a while: the kernel then drops attempts to connect, at no cost to us.

libzmq accepts every connection, and to unbind its socket would end those that exist. So the adapter makes the listening
socket itself, and hands it to libzmq.
"""

from __future__ import annotations

import ctypes
import socket
import struct

from tandemfeed.transport.unicast.wire import parse_unicast_address

BACKLOG = 64
SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27  # socket(7); Python's module does not name them
_DROP_ALL = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0))  # "return 0" of bpf(4): keep no byte
_PROGRAM = struct.pack("@HP", 1, ctypes.addressof(_DROP_ALL))


class Listener:
    """Listens from the beginning.

    Args:
        address: "IPV4:PORT"; port 0: any.

    Raises:
        OSError: it cannot listen there.

    Attributes:
        endpoint: the "IPV4:PORT" where it listens.
    """

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(parse_unicast_address(address))
            self._socket.listen(BACKLOG)
            self._socket.setblocking(False)
        except BaseException:
            self._socket.close()
            raise
        self.name: tuple[str, int] = self._socket.getsockname()
        self.endpoint = "{}:{}".format(*self.name)

    def for_libzmq(self) -> int:
        """Another file descriptor of the socket, which libzmq will close."""
        return self._socket.dup().detach()

    def set_deaf(self, is_deaf: bool) -> None:
        """Let the kernel drop every attempt to connect, or none. Connections are not affected. For any thread."""
        if is_deaf:
            self._socket.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, _PROGRAM)
        else:
            self._socket.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)

    def close(self) -> None:
        """Close this file descriptor."""
        self._socket.close()
