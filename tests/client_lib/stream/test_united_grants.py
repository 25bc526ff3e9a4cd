"""What subscriptions of one feed may use together, whatever the ages of their grants; and the inbox of each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.client_lib.login.grant import DocumentName, Grant, GrantedAdapter, GrantedKey, UnicastPlace
from tandemfeed.client_lib.stream.sockets.inbox import Inbox
from tandemfeed.client_lib.stream.sockets.transport_choice import UnicastChosen
from tandemfeed.client_lib.stream.sockets.united_grant import united
from tandemfeed.feedcore.wire.refusal import Refusal
from tandemfeed.transport.sealing.announced_starts import AnnouncedStart
from tandemfeed.transport.sealing.start_keys import SealingKey
from tests.client_lib.toy_cluster import packet

CHANNELS = st.frozensets(st.integers(1, 4), min_size=1)
KEYS = st.frozensets(st.integers(1, 6))
INCARNATIONS = st.dictionaries(st.integers(1, 3), st.integers(1, 3), max_size=3)  # newest start of each adapter


def adapter_of(adapter_id: int, incarnation: int, channels: frozenset[int], *, has_unicast: bool) -> GrantedAdapter:
    """With this start and the one before it, as an admin server describes it."""
    starts = tuple(
        AnnouncedStart(adapter_id, each, bytes([each]) * 32, bytes([each]) * 32, dict.fromkeys(channels, 5))
        for each in (incarnation - 1, incarnation)
        if each
    )
    groups = {channel: f"239.1.{adapter_id}.{channel}:{5000 + 10 * adapter_id + channel}" for channel in channels}
    place = UnicastPlace(f"10.0.0.{adapter_id}:{7000 + incarnation}", bytes([incarnation]) * 32)
    return GrantedAdapter(
        adapter_id, f"a{adapter_id}", "", "", groups, starts, incarnation, place if has_unicast else None
    )


@st.composite
def grants(draw: st.DrawFn) -> Grant:
    channels = draw(CHANNELS)
    return Grant(
        feed_id=1,
        feed_name="f",
        session=20261121,
        topics_by_channel={channel: f"t.{channel}" for channel in channels},
        source_stream_names={},
        adapters={
            each: adapter_of(each, incarnation, channels, has_unicast=draw(st.booleans()))
            for each, incarnation in draw(INCARNATIONS).items()
        },
        keys={each: GrantedKey(SealingKey(each, 1, bytes(32), b""), 0) for each in draw(KEYS)},
        message_model=b"",
        model_name=DocumentName("m", "1"),
    )


@given(st.lists(grants(), min_size=1, max_size=5))
def test_they_have_all_that_any_of_them_has_and_no_more(several: list[Grant]) -> None:
    one = united(several)
    assert set(one.topics) == {topic for each in several for topic in each.topics}
    assert set(one.keys) == {key_id for each in several for key_id in each.keys}
    assert set(one.groups) == {group for each in several for group in each.groups}
    assert {start.identity for start in one.starts} == {start.identity for each in several for start in each.starts}
    counted = {
        (start.identity, channel) for each in several for start in each.starts for channel in start.next_counters
    }
    assert {(start.identity, channel) for start in one.starts for channel in start.next_counters} == counted


@given(st.lists(grants(), min_size=1, max_size=5))
def test_an_adapter_is_received_at_the_address_of_its_newest_start(several: list[Grant]) -> None:
    for adapter_id, adapter in united(several).adapters.items():
        known = [each.adapters[adapter_id] for each in several if adapter_id in each.adapters]
        newest = max(each.incarnation for each in known)
        places = [each.unicast for each in known if each.incarnation == newest and each.unicast is not None]
        assert adapter.incarnation == newest
        assert adapter.unicast == (places[0] if places else None)


@given(grants())
def test_that_of_one_subscription_is_its_own(grant: Grant) -> None:
    assert united([grant]) is grant


ENTRIES = st.lists(st.sampled_from(["put", "take", "refuse", "notify", "wait", "event"]), max_size=60)


@given(ENTRIES, st.integers(1, 5))
def test_an_inbox_keeps_the_oldest_in_order_and_wakes_whoever_waits(steps: list[str], count_max: int) -> None:
    woken: list[bool] = []
    inbox = Inbox(count_max, 0, lambda: woken.append(True))
    kept: list[object] = []
    put = dropped = refused = 0
    for step in steps:
        if step == "put":
            put += 1
            opened = packet(put, put, 1)
            inbox.put((opened, "", ""))  # type: ignore[arg-type]
            if len(kept) < count_max:
                kept.append((opened, "", ""))
            else:
                dropped += 1
        elif step == "event":
            inbox.put_event(UnicastChosen(1, "why"))
            kept.append(UnicastChosen(1, "why"))
        elif step == "refuse":
            inbox.refuse(Refusal.FORGED)
            refused += 1
        elif step == "take" and len(inbox):
            assert inbox.take() == kept.pop(0)
        elif step == "wait":
            inbox.is_waiting = True
        elif step == "notify":
            before, was_waiting = len(woken), inbox.is_waiting
            inbox.notify()
            assert len(woken) - before == (was_waiting and bool(kept))
            assert inbox.is_waiting == (was_waiting and not kept)
        assert len(inbox) == len(kept)
    assert (inbox.datagram_count, inbox.dropped_count) == (put + refused, dropped)
    assert inbox.take_refused() == ({Refusal.FORGED: refused} if refused else {})
    assert inbox.take_refused() == {}
