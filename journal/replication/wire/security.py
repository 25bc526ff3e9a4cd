"""CURVE keys of replication connections (ZeroMQ RFC 26): they encrypt, and authenticate both sides.

Without CURVE anyone who can reach the port can read the journal. Keys are pairs of 40 characters in Z85 (RFC 32).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import zmq
import zmq.utils.z85

KEY_TEXT_SIZE = 40
ZAP_ENDPOINT = "inproc://zeromq.zap.01"


def _check(**keys: bytes) -> None:
    for name, key in keys.items():
        if len(key) != KEY_TEXT_SIZE:
            raise ValueError(f"{name} has {len(key)} characters; a CURVE key has {KEY_TEXT_SIZE} characters")


def new_keys() -> tuple[bytes, bytes]:
    """A new pair: public, secret. Neither begins with a hyphen, which a command line takes for an option."""
    while True:
        public, secret = map(bytes, zmq.curve_keypair())
        if not public.startswith(b"-") and not secret.startswith(b"-"):
            return public, secret


@dataclass(frozen=True, slots=True)
class LeaderKeys:
    """A leader's keys.

    Args:
        secret_key: of the leader.
        follower_keys: public keys of the allowed followers; None: all that know the leader's public key.

    Raises:
        ValueError: a key has the wrong length.
    """

    secret_key: bytes = field(repr=False)
    follower_keys: frozenset[bytes] | None = None

    def __post_init__(self) -> None:
        _check(secret_key=self.secret_key)
        for key in self.follower_keys or ():
            _check(follower_keys=key)

    def apply(self, socket: zmq.Socket[bytes]) -> None:
        """Set the keys on a socket before it binds."""
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret_key)

    def answer(self, request: list[bytes]) -> list[bytes]:
        """The reply to an authentication request of libzmq (ZAP, RFC 27): may a client connect?"""
        version, request_id, _, _, _, mechanism, *credentials = request
        known = {zmq.utils.z85.decode(key) for key in self.follower_keys or ()}
        if mechanism == b"CURVE" and credentials and credentials[0] in known:
            return [version, request_id, b"200", b"OK", b"follower", b""]
        return [version, request_id, b"400", b"not a follower of this leader", b"", b""]


@dataclass(frozen=True, slots=True)
class FollowerKeys:
    """A follower's keys.

    Args:
        leader_key: the leader's public key.
        public_key: the follower's own public key.
        secret_key: the follower's secret key.

    Raises:
        ValueError: a key has the wrong length.
    """

    leader_key: bytes
    public_key: bytes
    secret_key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        _check(leader_key=self.leader_key, public_key=self.public_key, secret_key=self.secret_key)

    def apply(self, socket: zmq.Socket[bytes]) -> None:
        """Set the keys on a socket before it connects."""
        socket.setsockopt(zmq.CURVE_SERVERKEY, self.leader_key)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.public_key)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret_key)
