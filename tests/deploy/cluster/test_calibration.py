"""The rate at which the demo and the drills play."""

from __future__ import annotations

import pytest

from tandemfeed.deploy.cluster.calibration import (
    MESSAGES_PER_PACKET,
    RATE_MAX,
    RATE_MIN,
    SPARE_FACTOR,
    Calibration,
    calibrate,
)
from tandemfeed.deploy.cluster.topology import Shape
from tandemfeed.deploy.drills.source import packet_size

NEEDED = 1_000 * SPARE_FACTOR  # pieces of work per second for 20,000 messages in packets of 20


def borne(*pieces_per_s: float) -> Calibration:
    return Calibration(pieces_per_s)


def test_a_fast_machine_plays_at_the_default_rate() -> None:
    fast = borne(*[3 * NEEDED] * 4)
    assert fast.rate == 20_000
    assert fast.reason.startswith("the default: in a second, 4 processes at once did the work of 4,800 packets each")


def test_a_slow_machine_plays_slower_and_the_demo_says_why() -> None:
    slow = borne(*[0.667 * NEEDED] * 4)
    assert slow.rate == 13_000
    assert slow.reason.startswith("what this machine bears now")
    assert slow.reason.endswith("1,067 packets each; 20,000 messages per second need 1,600")


def test_one_process_that_had_to_wait_does_not_decide_alone() -> None:
    assert borne(NEEDED, NEEDED, NEEDED, NEEDED / 5).rate == 16_000


def test_even_a_machine_that_did_nothing_plays_something() -> None:
    assert borne(0.0, 0.0, 0.0, 1.0).rate == RATE_MIN


def test_a_lower_rate_means_fewer_packets_of_the_same_size() -> None:
    half = borne(*[0.5 * NEEDED] * 4)
    assert half.rate == 10_000
    assert packet_size(half.rate, 2, half.packets_per_s) == MESSAGES_PER_PACKET == packet_size(RATE_MAX, 2)
    assert packet_size(half.rate, 2) == 10  # with --rate, latency comes first


@pytest.mark.processes
def test_the_processes_of_a_calibration_report_their_work() -> None:
    found = calibrate(Shape(feeds=2, backups=1), seconds=0.05)
    assert len(found.pieces_per_s) == 8  # of each feed a gateway, two adapters, a client
    assert min(found.pieces_per_s) > 0
    assert RATE_MIN <= found.rate <= 20_000
