"""The admin server decides which key an adapter seals with; no clock of the adapter's host has a part in it."""

from __future__ import annotations

import time

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tandemfeed.adapter.reporting.stream_keys import StreamKeys
from tandemfeed.feedcore.wire.output_packet import OUTPUT_LAYOUT, OutputFlag, OutputPacket
from tandemfeed.transport.sealing.announced_starts import SALT_SIZE, AnnouncedStart
from tandemfeed.transport.sealing.opening import Opener
from tandemfeed.transport.sealing.sealing import Sealer
from tandemfeed.transport.sealing.source_sealing import SourceOpener
from tandemfeed.v1 import admin_pb2

FEED_ID, CHANNEL, HOUR_NS = 1, 1, 3_600 * 1_000_000_000


class Keyed:
    """A sealer and an opener, and the keys that they were sent."""

    def __init__(self) -> None:
        private_key = Ed25519PrivateKey.generate()
        public_key = private_key.public_key().public_bytes_raw()
        self.sealer = Sealer(FEED_ID, AnnouncedStart(1, 1, bytes(SALT_SIZE), public_key), private_key)
        self.opener = Opener(FEED_ID)
        self.keys = StreamKeys(self.sealer, self.opener, SourceOpener(FEED_ID))

    def adopt(self, *keys: tuple[int, int]) -> None:
        """The server sends keys as (key_id, not_before_unix_ns)."""
        changed = admin_pb2.ClusterChanged()
        for key_id, not_before_unix_ns in keys:
            changed.keys.add(
                key_id=key_id, channel_id=CHANNEL, key=bytes([key_id]) * 32, not_before_unix_ns=not_before_unix_ns
            )
            changed.decision_keys.add(channel_id=CHANNEL, key_id=key_id, key=bytes(32))
        self.keys.adopt(changed)

    def used(self) -> int:
        """The key that the next packet is sealed with."""
        packet = OutputPacket(OutputFlag.HEARTBEAT, FEED_ID, CHANNEL, 1, 20261121, 1, 1, 1, 0, (), 0, 0, b"")
        (key_id,) = OUTPUT_LAYOUT.part("key_id").unpack_from(
            self.sealer.seal(packet, 0), OUTPUT_LAYOUT.offsets["key_id"]
        )
        return int(key_id)


@pytest.fixture
def keyed() -> Keyed:
    return Keyed()


@pytest.mark.parametrize("hours", [-1, 0, 1], ids=["an hour back", "in time", "an hour ahead"])
def test_a_new_key_is_used_when_the_server_says_so_whatever_the_hosts_clock_says(
    keyed: Keyed, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    now_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns + hours * HOUR_NS)
    keyed.adopt((1, 0))
    keyed.adopt((1, 0), (2, now_ns + 60 * 1_000_000_000))  # valid in a minute
    assert keyed.used() == 1
    keyed.adopt((1, 0), (2, 0))
    assert keyed.used() == 2
    keyed.adopt((2, 0))
    assert (keyed.used(), keyed.opener.key_ids) == (2, {2})


def test_an_adapter_that_was_sent_no_valid_key_seals_with_the_oldest(keyed: Keyed) -> None:
    """As when the server's clock was set back after it had made the keys."""
    keyed.adopt((1, time.time_ns() + HOUR_NS), (2, time.time_ns() + 2 * HOUR_NS))
    assert keyed.used() == 1
