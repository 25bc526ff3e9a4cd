"""No adapter is accused without a forger, whatever pauses, is lost, is reordered or steps; forgers are found out."""

from __future__ import annotations

import pytest

from tandemfeed.client_lib.stream.trust.signer_time import OVERTAKEN_NS
from tandemfeed.client_lib.stream.trust.stream_trust import DistrustReason, VerifyMode
from tests.client_lib.stream.trust_story import HOUR, MS, Story, Weather

STORY_NS = 1_500 * MS
FOUND_WITHIN_NS = 160 * MS  # a signature of an idle stream every 50 to 53 ms: the third one after the forged packet
WEATHERS = {
    "a busy stream and a reader that pauses": Weather(
        loss=0.02, jitter_ns=5 * MS, reader_pause=0.05, burst_max=40, busy=0.2
    ),
    "lists that are cut": Weather(reader_pause=0.1, adapter_pause=0.001, burst_max=60, digest_count_max=28, busy=0.2),
    "everything together": Weather(
        loss=0.1,
        duplication=0.1,
        jitter_ns=35 * MS,
        reader_pause=0.05,
        adapter_pause=0.0005,
        clock_step=0.02,
        burst_max=30,
        busy=0.5,
    ),
    "a slow stream whose adapters' clocks step": Weather(
        loss=0.1, jitter_ns=38 * MS, reader_pause=0.05, adapter_pause=0.005, clock_step=0.1, busy=0.1
    ),
    "two paths": Weather(
        loss=0.2,
        jitter_ns=30 * MS,
        reader_pause=0.05,
        adapter_pause=0.002,
        clock_step=0.05,
        burst_max=20,
        busy=0.5,
        is_by_two_paths=True,
    ),
}


@pytest.mark.parametrize("stops_clock", [True, False], ids=["by the reader's time", "by a clock that does not stop"])
@pytest.mark.parametrize("weather", WEATHERS.values(), ids=WEATHERS)
def test_no_adapter_is_accused_without_a_forger(weather: Weather, stops_clock: bool) -> None:
    accepted = 0
    for seed in range(6):
        story = Story(seed, weather, stops_clock=stops_clock)
        story.run(STORY_NS)
        assert story.alarms == [], f"seed {seed}"
        accepted += sum(bool(each.runs) for each in story.accepted)
    assert accepted > 100


@pytest.mark.parametrize("verify", ["alarm", "signed"])
def test_a_reader_that_pauses_for_long_refuses_nothing_that_its_queues_kept(verify: VerifyMode) -> None:
    story = Story(1, Weather(reader_pause=0.01, longest_pause_ns=3_000 * MS, burst_max=10), verify)
    story.run(3_000 * MS)
    assert story.alarms == []
    accepted = {each.first_message_seq for each in story.accepted if each.runs}
    assert accepted == set(range(1, len(accepted) + 1))


IDLE, SLOW, BUSY = Weather(busy=0), Weather(busy=0.3, burst_max=1), Weather(burst_max=3)
TWO_PATHS = Weather(burst_max=3, is_by_two_paths=True)
CLAIMS_NS = {"the time": 0, "an hour ago": -HOUR, "in an hour": HOUR}


@pytest.mark.parametrize("claim_ns", CLAIMS_NS.values(), ids=CLAIMS_NS)
@pytest.mark.parametrize("weather", [IDLE, SLOW, BUSY, TWO_PATHS], ids=["idle", "slow", "busy", "two paths"])
def test_a_packet_whose_counter_its_adapter_has_not_reached_is_found_out_soon_whatever_time_it_claims(
    weather: Weather, claim_ns: int
) -> None:
    for seed in range(3):
        story = Story(seed, weather)
        story.written = 20
        story.run(300 * MS + seed * 7 * MS)
        forged_at_ns = story.forge(1, ahead=(500, 3_000)[seed % 2], claim_ns=claim_ns)
        story.run(forged_at_ns + 300 * MS)
        (found_at_ns, alarm), *more = story.alarms
        assert (alarm.adapter_id, alarm.reason, more) == (1, DistrustReason.NOT_SENT, [])
        assert OVERTAKEN_NS <= found_at_ns - forged_at_ns <= FOUND_WITHIN_NS, f"seed {seed}"


def test_a_forger_is_found_out_while_the_reader_pauses_too() -> None:
    found = 0
    for seed in range(8):
        story = Story(seed, Weather(burst_max=3, reader_pause=0.05, loss=0.02, jitter_ns=2 * MS))
        story.run(300 * MS)
        forged_at_ns = story.forge(1, ahead=2_000)
        story.run(forged_at_ns + 3_000 * MS)
        found += [alarm.adapter_id for _, alarm in story.alarms] == [1]
        assert len(story.alarms) <= 1
    assert found >= 5, "the others were never accepted, because the stream had continued when the reader took them"
