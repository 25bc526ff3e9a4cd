"""Which adapters are heard: what is a broken link, and what is not."""

from __future__ import annotations

from tandemfeed.feedcore.replica.channel_state import ChannelStatus
from tandemfeed.feedcore.replica.heard_adapters import ATTENTION_NS, MS, HeardAdapters
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.position import MessageStreamState

OTHER = 2


def status(channel_id: int = 1, state: ReplicaState = ReplicaState.SYNCHRONIZED, epoch: int = 1) -> ChannelStatus:
    return ChannelStatus(channel_id, state, MessageStreamState(epoch, 1, 1, {}))


def silence_after(heard: HeardAdapters, time_ns: int, *, until_ns: int) -> int | None:
    """The silence of the other adapter, asked for every 100 ms from a time on until another."""
    silences: dict[int, int] = {}
    for now_ns in range(time_ns, until_ns + 1, 100 * MS):
        silences = heard.silences_ns([OTHER], now_ns)
    return silences.get(OTHER)


def test_an_adapter_that_has_reported_nothing_is_not_silent() -> None:
    assert silence_after(HeardAdapters([1], 0), 0, until_ns=5_000 * MS) is None


def test_a_transmitting_adapter_is_silent_from_its_last_packet_on() -> None:
    heard = HeardAdapters([1], 0)
    heard.on_packet(OTHER, 1, 0)
    heard.on_status(OTHER, status(), 0)
    assert silence_after(heard, 0, until_ns=3_000 * MS) == 3_000 * MS
    heard.on_packet(OTHER, 1, 3_000 * MS)
    assert heard.silences_ns([OTHER], 3_010 * MS) == {OTHER: 10 * MS}


def test_the_channel_that_is_silent_for_longest_counts() -> None:
    heard = HeardAdapters([1, 2], 0)
    for channel_id in (1, 2):
        heard.on_status(OTHER, status(channel_id), 0)
    heard.on_packet(OTHER, 2, 90 * MS)
    assert heard.silences_ns([OTHER], 100 * MS) == {OTHER: 100 * MS}


def test_an_adapter_that_transmits_nothing_yet_is_not_silent() -> None:
    for unplaced in (status(state=ReplicaState.JOINING), status(state=ReplicaState.FAILED), status(epoch=0)):
        heard = HeardAdapters([1], 0)
        heard.on_status(OTHER, unplaced, 0)
        assert silence_after(heard, 0, until_ns=2_000 * MS) == 2_000 * MS  # nothing newer was said
        heard.on_status(OTHER, unplaced, 2_000 * MS)
        assert heard.silences_ns([OTHER], 2_000 * MS) == {OTHER: 0}


def test_an_adapter_that_says_it_transmits_and_is_never_heard_becomes_silent() -> None:
    heard = HeardAdapters([1], 0)
    for now_ns in range(0, 3_000 * MS, 100 * MS):
        heard.on_status(OTHER, status(), now_ns)
        heard.silences_ns([OTHER], now_ns)
    assert heard.silences_ns([OTHER], 3_000 * MS) == {OTHER: 3_000 * MS}


def test_a_pause_of_this_process_is_not_a_silence_of_others() -> None:
    heard = HeardAdapters([1], 0)
    heard.on_status(OTHER, status(), 0)
    heard.silences_ns([OTHER], 0)
    heard.on_packet(OTHER, 1, 90 * MS)
    assert heard.silences_ns([OTHER], 100 * MS) == {OTHER: 10 * MS}
    assert heard.silences_ns([OTHER], 30_100 * MS) == {OTHER: 10 * MS}
    assert heard.silences_ns([OTHER], 30_100 * MS + ATTENTION_NS) == {OTHER: 10 * MS + ATTENTION_NS}


def test_what_is_heard_between_a_pause_and_the_next_report_is_not_older_than_the_report() -> None:
    heard = HeardAdapters([1], 0)
    heard.on_status(OTHER, status(), 0)
    assert heard.silences_ns([OTHER], 100 * MS) == {OTHER: 100 * MS}
    heard.on_packet(OTHER, 1, 30_000 * MS)  # it waited in a queue, or has just arrived
    assert heard.silences_ns([OTHER], 30_100 * MS) == {OTHER: 0}
    assert silence_after(heard, 30_200 * MS, until_ns=33_000 * MS) == 2_900 * MS - ATTENTION_NS
