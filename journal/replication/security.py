"""Keys of a replicated connection: CURVE (RFC 26 of ZeroMQ), which encrypts, and proves both sides to each other.

Without it anybody who reaches the port may read the journal. Keys are pairs of 40 characters in Z85 (RFC 32).
"""

from __future__ import annotations

from dataclasses import dataclass

import zmq
import zmq.utils.z85

KEY_TEXT_SIZE = 40
ZAP_ENDPOINT = "inproc://zeromq.zap.01"


def _check(**keys: bytes) -> None:
    for name, key in keys.items():
        if len(key) != KEY_TEXT_SIZE:
            raise ValueError(f"{name}: a CURVE key has {KEY_TEXT_SIZE} characters, not {len(key)}")


def new_keys() -> tuple[bytes, bytes]:
    """A new pair: public, secret."""
    public, secret = zmq.curve_keypair()
    return bytes(public), bytes(secret)


@dataclass(frozen=True, slots=True)
class LeaderKeys:
    """A leader's keys.

    Args:
        secret_key: its own.
        follower_keys: public keys of those who may follow; None: everybody who knows the leader's public key.

    Raises:
        ValueError: something is no key.
    """

    secret_key: bytes
    follower_keys: frozenset[bytes] | None = None

    def __post_init__(self) -> None:
        _check(secret_key=self.secret_key)
        for key in self.follower_keys or ():
            _check(follower_keys=key)

    def apply(self, socket: zmq.Socket[bytes]) -> None:
        """Before it binds."""
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret_key)

    def answer(self, request: list[bytes]) -> list[bytes]:
        """The answer to libzmq's question whether a client may connect (RFC 27)."""
        version, request_id, _, _, _, mechanism, *credentials = request
        known = {zmq.utils.z85.decode(key) for key in self.follower_keys or ()}
        if mechanism == b"CURVE" and credentials and credentials[0] in known:
            return [version, request_id, b"200", b"OK", b"follower", b""]
        return [version, request_id, b"400", b"no follower of this leader", b"", b""]


@dataclass(frozen=True, slots=True)
class FollowerKeys:
    """A follower's keys.

    Args:
        leader_key: the leader's public key.
        public_key, secret_key: its own.

    Raises:
        ValueError: something is no key.
    """

    leader_key: bytes
    public_key: bytes
    secret_key: bytes

    def __post_init__(self) -> None:
        _check(leader_key=self.leader_key, public_key=self.public_key, secret_key=self.secret_key)

    def apply(self, socket: zmq.Socket[bytes]) -> None:
        """Before it connects."""
        socket.setsockopt(zmq.CURVE_SERVERKEY, self.leader_key)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.public_key)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret_key)
