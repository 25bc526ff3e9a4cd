"""A start of an adapter with its keys, for tests that seal and open packets."""

from __future__ import annotations

from dataclasses import replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tandemfeed.transport.sealing.announced_starts import AnnouncedStart
from tandemfeed.transport.sealing.opening import Opener, StreamOpener
from tandemfeed.transport.sealing.sealing import Sealer
from tandemfeed.transport.sealing.start_keys import SealingKey

FEED_ID, CHANNEL_ID, ADAPTER_ID = 7, 1, 2  # as in tests.feedcore.packets.output_packet
KEY = SealingKey(5, CHANNEL_ID, bytes(range(32)), bytes(range(100, 132)))
READERS_KEY = replace(KEY, decision_key=b"")
PRIVATE_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(200, 232)))
START = AnnouncedStart(
    ADAPTER_ID, 9, bytes(range(50, 82)), PRIVATE_KEY.public_key().public_bytes_raw(), {CHANNEL_ID: 1}
)


def sealer(start: AnnouncedStart = START, key: SealingKey = KEY, first_counter: int = 1) -> Sealer:
    """The adapter's sealer."""
    made = Sealer(FEED_ID, start, PRIVATE_KEY, first_counter=first_counter)
    made.use_key(key)
    return made


def opener(*keys: SealingKey, start: AnnouncedStart = START) -> Opener:
    """The opener of another adapter."""
    made = Opener(FEED_ID)
    made.announce([start])
    for key in keys or (KEY,):
        made.add_key(key)
    return made


def stream_opener(*keys: SealingKey, start: AnnouncedStart = START) -> StreamOpener:
    """The opener of a reader."""
    made = StreamOpener(FEED_ID)
    made.announce([start])
    for key in keys or (READERS_KEY,):
        made.add_key(key)
    return made


def forger(start: AnnouncedStart = START, first_counter: int = 1) -> Sealer:
    """The sealer of a reader that impersonates the adapter: it has the channel's key, and invents the rest."""
    made = Sealer(FEED_ID, start, Ed25519PrivateKey.generate(), first_counter=first_counter)
    made.use_key(replace(KEY, decision_key=bytes(32)))
    return made
