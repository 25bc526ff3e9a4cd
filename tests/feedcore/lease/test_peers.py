"""What an adapter knows of its peers and of the admin server (docs/protocol.md clause 6.7), to the nanosecond."""

from __future__ import annotations

from dataclasses import replace

from tandemfeed.feedcore.lease.admin_contact import AdminContact
from tandemfeed.feedcore.lease.peers import REPORTS_REMEMBERED, ConsentConfig, Peers, known_epoch
from tandemfeed.feedcore.replica.channel_state import ChannelStatus, PeerState
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.lineage import EpochStart, Lineage
from tandemfeed.feedcore.wire.position import MessageStreamState

MS = 1_000_000
CONFIG = ConsentConfig.of(100 * MS)
OWN = 1


def state(
    adapter_id: int = 2,
    report_id: int = 1,
    *,
    incarnation: int = 1,
    heard: int = 1,
    abstains: bool = True,
    epochs: tuple[int, ...] = (1,),
) -> PeerState:
    """A peer's report.

    Args:
        heard: the report of ours that it answers.
        epochs: one per channel.
    """
    channels = tuple(
        ChannelStatus(number, ReplicaState.SYNCHRONIZED, MessageStreamState(epoch), Lineage((EpochStart(epoch, 1, 1),)))
        for number, epoch in enumerate(epochs, 1)
    )
    return PeerState(adapter_id, incarnation, report_id, channels, {OWN: heard}, abstains)


def peers(*others: int) -> Peers:
    """The peers of an adapter that sent report 1 at 1,000 ms."""
    found = Peers(OWN, CONFIG)
    found.others = frozenset(others)
    found.on_report_sent(1_000 * MS)
    return found


def test_all_times_are_derived_from_the_sync_interval() -> None:
    assert ConsentConfig.of(100 * MS) == ConsentConfig(250 * MS, 400 * MS, 300 * MS, 2_000 * MS)  # protocol 6.7, 8


def test_a_report_counts_only_if_it_is_newer_or_of_a_later_incarnation() -> None:
    found = peers(2)
    assert found.note(state(report_id=5), 0)
    assert not found.note(state(report_id=5), 1)
    assert not found.note(state(report_id=4), 2)
    assert found.note(state(report_id=6), 3)
    assert found.note(state(report_id=1, incarnation=2), 4)
    assert not found.note(state(report_id=7), 5)
    assert found.heard_report_ids() == {2: 1}


def test_a_state_is_fresh_for_exactly_as_long_as_configured() -> None:
    found = peers(2)
    found.note(state(), 10 * MS)
    assert found.fresh(10 * MS + CONFIG.fresh_ns - 1) == [state()]
    assert found.fresh(10 * MS + CONFIG.fresh_ns) == []


def test_consent_ends_when_the_first_promise_ends() -> None:
    found = peers(2, 3)
    found.on_report_sent(1_050 * MS)
    found.note(state(2, heard=2), 1_060 * MS)
    assert found.consent_until_ns(1) == 0, "adapter 3 has reported nothing"
    found.note(state(3, heard=1), 1_060 * MS)
    assert found.consent_until_ns(1) == 1_000 * MS + CONFIG.abstain_ns
    found.note(state(3, 2, heard=2), 1_070 * MS)
    assert found.consent_until_ns(1) == 1_050 * MS + CONFIG.abstain_ns


def test_an_adapter_consents_only_if_it_answers_our_report_abstains_and_knows_no_newer_epoch() -> None:
    never_heard_us = replace(state(), heard_report_ids={3: 1})
    unanswered = (state(heard=0), state(heard=2), never_heard_us)
    for refusing in (*unanswered, state(abstains=False), state(epochs=(1, 2)), state(epochs=(2, 1))):
        found = peers(2)
        found.note(refusing, 1_001 * MS)
        assert found.consent_until_ns(1) == 0, refusing
    found = peers(2)
    found.note(state(), 1_001 * MS)
    assert found.consent_until_ns(1) == 1_000 * MS + CONFIG.abstain_ns


def test_an_adapter_without_peers_has_no_consent() -> None:
    assert peers().consent_until_ns(1) == 0


def test_reports_are_counted_and_the_oldest_are_forgotten() -> None:
    found = peers(2)
    found.note(state(heard=1), 1_001 * MS)
    for _ in range(REPORTS_REMEMBERED - 1):
        found.on_report_sent(1_002 * MS)
    assert found.report_id == REPORTS_REMEMBERED
    assert found.consent_until_ns(1) == 1_000 * MS + CONFIG.abstain_ns
    found.on_report_sent(1_003 * MS)
    assert found.consent_until_ns(1) == 0
    found.note(state(report_id=2, heard=2), 1_004 * MS)
    assert found.consent_until_ns(1) == 1_002 * MS + CONFIG.abstain_ns


def test_the_known_epoch_is_the_newest_of_any_channel() -> None:
    assert [known_epoch(state(epochs=epochs)) for epochs in ((3, 1), (1, 3), ())] == [3, 3, 0]


def contact(*, is_caught_up: bool) -> AdminContact:
    """A contact created at 0 that heard the server at 10 ms."""
    found = AdminContact(CONFIG, None, 0)
    assert not found.on_message(1, 10 * MS, is_caught_up=is_caught_up)
    return found


def test_contact_ends_after_the_configured_silence() -> None:
    found = contact(is_caught_up=True)
    assert found.is_in_contact(10 * MS + CONFIG.contact_ns - 1)
    assert not found.is_in_contact(10 * MS + CONFIG.contact_ns)


def test_a_starting_adapter_is_in_contact_and_does_not_settle_after_an_outage() -> None:
    found = AdminContact(CONFIG, None, 0)
    assert found.is_in_contact(1)
    assert not found.is_settling(0, 0)
    assert found.on_message(1, 900 * MS, is_caught_up=False), "it was out of contact"
    assert not found.is_settling(0, 901 * MS), "it has never been level with its group"


def test_an_adapter_that_was_once_level_settles_after_an_outage_even_if_it_had_fallen_behind() -> None:
    found = contact(is_caught_up=True)
    found.on_message(1, 20 * MS, is_caught_up=False)
    assert found.on_message(1, 520 * MS, is_caught_up=False)
    assert found.is_settling(1, 1_020 * MS - 1)
    assert not found.is_settling(1, 1_020 * MS)
    assert not found.is_settling(2, 521 * MS), "an epoch has begun, so the outage was only this adapter's"
