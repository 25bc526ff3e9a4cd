"""A contribution gateway with real logins: who may contribute, until when, and what a client's calls promise."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tandemfeed.client_lib import (
    AuthenticationRefused,
    AuthorizationRefused,
    ContributionId,
    ContributionInDoubt,
    ContributionRefused,
    ContributionSuperseded,
    LimitReached,
)
from tandemfeed.client_lib.commands import contribute
from tandemfeed.journal import JournalError, Tailer
from tandemfeed.journal.replication.follower.follower_journal import FollowerJournal
from tandemfeed.journal.replication.wire.messages import Segment
from tandemfeed.spark_feed.contributions.book import Limits
from tandemfeed.spark_feed.contributions.contribution_log import copy_id
from tandemfeed.spark_feed.contributions.gateway import ContributionGateway
from tandemfeed.spark_feed.contributions.pair.membership import GatewayState
from tandemfeed.spark_feed.contributions.records import Kind, keys_in
from tandemfeed.spark_feed.contributions.recovery import JournalOfOtherStream
from tests.losing_disk import losing_disk
from tests.spark_feed.contributions.contribution_material import MESSAGES, messages_in, trade
from tests.spark_feed.contributions.gateway_site import (
    POLICY,
    TOPIC,
    GatewaySite,
    gateway_site,
    holder_of,
    sent_messages,
)

PATIENCE_S = 60.0
HOUR_S = 3_600.0
pytestmark = pytest.mark.processes


@pytest.fixture
def site(tmp_path: Path) -> Iterator[GatewaySite]:
    with gateway_site(tmp_path) as running:
        yield running


def await_sent(gateway: ContributionGateway, count: int) -> list[tuple[int, int]]:
    await_part(gateway, lambda: holder_of(gateway).index.next_source_seqs[1] > count)
    return sent_messages(gateway)


def await_part(gateway: ContributionGateway, is_so: Callable[[], bool]) -> None:
    """Wait for what the gateway's thread does."""
    give_up_at_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < give_up_at_s, gateway.part.reason
        time.sleep(0.01)


def numbered(first: int, end: int) -> list[tuple[int, int]]:
    return [(number, number) for number in range(first, end)]


def test_messages_are_sent_once_over_restarts_of_gateway_and_contributor(site: GatewaySite) -> None:
    with site.gateway(), site.connect() as client:
        first = client.contribute(TOPIC, producer="model")
        assert first.messages is MESSAGES or list(first.messages) == list(MESSAGES)
        assert first.send(first.messages.Trade.from_bytes(trade(1))) == ContributionId("model", 1)
        ids = first.send_many([trade(number) for number in range(2, 2_002)])  # more than a request has
        assert ids[-1] == ContributionId("model", 2_001)
    with site.gateway() as gateway, site.connect() as client:
        second = client.contribute(TOPIC, producer="model")
        assert second.next_number == 2_002
        second.send(trade(2_002))
        assert await_sent(gateway, 2_002) == numbered(1, 2_003)


def test_a_call_outlives_a_restart_of_the_gateway_and_one_without_an_answer_is_repeated_by_the_next(
    site: GatewaySite,
) -> None:
    with site.connect() as client:
        with site.gateway():
            contribution = client.contribute(TOPIC, timeout_s=PATIENCE_S)
            impatient = client.contribute(TOPIC, producer="impatient", timeout_s=0)
        with pytest.raises(ContributionInDoubt):
            impatient.send(trade(1))
        sending = threading.Thread(target=contribution.send, args=(trade(2),))
        sending.start()
        with site.gateway() as gateway:
            sending.join(PATIENCE_S)
            give_up_at_s = time.monotonic() + PATIENCE_S
            while True:  # the connection comes back some time after the gateway
                try:
                    assert impatient.send(trade(3)) == ContributionId("impatient", impatient.next_number - 1)
                    break
                except ContributionInDoubt:
                    assert time.monotonic() < give_up_at_s
            count = impatient.next_number
            sent = await_sent(gateway, count)
            assert sorted(number for _, number in sent) == [1, 2, *[3] * (count - 2)]


class SteppedClock:
    """A wall clock that a test sets."""

    step_s = 0.0

    def __call__(self) -> int:
        return time.time_ns() + round(self.step_s * 1e9)


@pytest.mark.parametrize("step_s", [-HOUR_S, HOUR_S])
def test_a_wall_clock_that_is_set_by_an_hour_stops_nothing_and_releases_nothing(
    site: GatewaySite, step_s: float
) -> None:
    clock = SteppedClock()
    limits = Limits(messages_per_second=100)
    with site.gateway(wall_clock_ns=clock, messages_per_second=100, limits=limits) as gateway, site.connect() as client:
        desk = client.contribute(TOPIC, producer="desk", timeout_s=PATIENCE_S)
        held = desk.send(desk.messages.Trade.from_bytes(trade(1)), hold_s=HOUR_S / 2)
        clock.step_s = step_s
        desk.send_many([trade(number) for number in range(2, 252)])  # more than both rates may save up
        assert [number for _, number in await_sent(gateway, 250)] == list(range(2, 252))
        assert desk.cancel(held) == [held]


def test_pending_messages_are_cancelled_and_others_are_sent(site: GatewaySite) -> None:
    with site.gateway() as gateway, site.connect() as client:
        desk, other = client.contribute(TOPIC, producer="desk"), client.contribute(TOPIC, producer="other")
        ids = desk.send_many([trade(number) for number in range(1, 4)], hold_s=HOUR_S)
        other.send_many([trade(9)], hold_s=HOUR_S)
        sent = desk.send(trade(4))
        await_sent(gateway, 1)
        assert desk.cancel([ids[1], sent]) == [ids[1]]
        assert desk.cancel_all() == 2
        assert desk.cancel(ids) == ids
        assert desk.cancel_all(every_producer=True) == 1
        with site.connect("bob") as stranger:
            assert stranger.contribute(TOPIC, producer="desk").cancel_all(every_producer=True) == 0
        assert await_sent(gateway, 1) == [(1, 4)]
        with pytest.raises(ValueError, match="another producer"):
            other.cancel(ids)


def test_a_message_that_does_not_fit_is_refused_and_the_next_one_is_accepted(site: GatewaySite) -> None:
    with site.gateway() as gateway, site.connect() as client:
        contribution = client.contribute(TOPIC)
        with pytest.raises(ContributionRefused, match="message 1 of the request: as Trade it must have"):
            contribution.send_many([trade(7), trade(8)[:-1]])
        with pytest.raises(ContributionRefused, match="fit in a packet"):
            contribution.send(bytes(3_000))
        contribution.send(trade(1))
        assert await_sent(gateway, 1) == [(1, 1)]


def test_a_contributor_over_its_limits_waits_and_another_is_served(site: GatewaySite) -> None:
    with site.gateway(limits=Limits(pending_count_max=10)), site.connect() as client, site.connect("bob") as other:
        flood = client.contribute(TOPIC, timeout_s=0)
        flood.send_many([trade(1)] * 10, hold_s=HOUR_S)
        with pytest.raises(LimitReached, match="10 messages of alice are pending"):
            flood.send(trade(2))
        assert other.contribute(TOPIC).send(trade(3)).number == 1
        assert flood.cancel_all() == 10
        assert flood.send(trade(4)).number == 11


def test_the_process_that_opens_a_producer_last_contributes(site: GatewaySite) -> None:
    with site.gateway(), site.connect() as client, site.connect() as restarted:
        old = client.contribute(TOPIC, producer="model")
        old.send(trade(1))
        new = restarted.contribute(TOPIC, producer="model")
        with pytest.raises(ContributionSuperseded, match="another process"):
            old.send(trade(2))
        assert new.send(trade(2)).number == 2


def test_who_loses_the_right_contributes_nothing_more_and_both_are_on_record(site: GatewaySite) -> None:
    with site.gateway() as gateway, site.connect() as client, site.connect("bob") as other:
        contribution = client.contribute(TOPIC)
        kept = other.contribute(TOPIC)
        contribution.send(trade(1))
        site.server.policy.path.write_text(POLICY.replace('[identity.alice]\ncontribute = ["resale.*"]\n', ""))
        site.server.policy.reload("the test")
        give_up_at_s = time.monotonic() + PATIENCE_S
        with pytest.raises((AuthenticationRefused, AuthorizationRefused)):  # noqa: PT012 - some calls come before it
            while time.monotonic() < give_up_at_s:
                contribution.send(trade(2))
        await_sent(gateway, 1)
        end = holder_of(gateway).index.next_source_seqs[1]
        kept.send(trade(3))
        assert await_sent(gateway, end)[-1] == (end, 3)
    audit = [json.loads(line) for line in (site.server.folder.path / "audit.jsonl").read_text().splitlines()]
    granted = [each["identity"] for each in audit if each["event"] == "contribution granted"]
    assert sorted(granted) == ["alice", "bob"]


def test_a_login_that_asks_for_the_gateway_again_and_again_is_on_record_once(site: GatewaySite) -> None:
    with site.gateway(), site.connect() as client, site.connect() as later:
        contributions = [each.contribute(TOPIC, producer=name) for each, name in ((client, "one"), (later, "two"))]
        for _ in range(20):
            for each in contributions:
                each._find_again()
        target = contributions[0]._target
    audit = [json.loads(line) for line in (site.server.folder.path / "audit.jsonl").read_text().splitlines()]
    granted = [(each["identity"], each["gateway"]) for each in audit if each["event"] == "contribution granted"]
    assert target is not None
    assert granted == [("alice", target.endpoint)] * 2


@pytest.mark.parametrize(("identity", "topic"), [("reader", TOPIC), ("alice", "resale.other"), ("alice", "resale.*")])
def test_a_topic_that_is_not_granted_and_one_that_does_not_exist_are_refused_alike(
    site: GatewaySite, identity: str, topic: str
) -> None:
    with site.connect(identity) as client, pytest.raises(AuthorizationRefused) as refused:
        client.contribute(topic)
    assert str(refused.value) == f"topic '{topic}' takes no contributions or is not granted to {identity}"


def test_contributions_go_to_the_channel_that_owns_the_stream_not_to_one_that_also_reads_it(site: GatewaySite) -> None:
    with site.gateway(), site.connect() as client:
        client.contribute(TOPIC).send(trade(1))
        with pytest.raises(AuthorizationRefused, match=r"'resale\.copies' takes no contributions"):
            client.contribute("resale.copies")


def test_asyncio_calls_do_what_their_twins_do(site: GatewaySite) -> None:
    async def run() -> int:
        async with site.connect() as client:
            contribution = client.contribute(TOPIC)
            await contribution.send_async(trade(1))
            ids = await contribution.send_many_async([trade(2), trade(3)], hold_s=HOUR_S)
            assert await contribution.cancel_async(ids[0]) == [ids[0]]
            return await contribution.cancel_all_async()

    with site.gateway() as gateway:
        assert asyncio.run(run()) == 1
        assert await_sent(gateway, 1) == [(1, 1)]


def test_the_command_contributes_lines_resumes_and_cancels(
    site: GatewaySite, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = site.server.folder.path
    options = ["--admin", site.server.endpoint, "--ca", str(folder / "ca.pem"), "--identity", "alice"]
    options += ["--secret-file", str(folder / "secrets" / "alice.secret"), "--producer", "file"]
    lines = [
        json.dumps({"message": "Trade", "symbol": "ACME", "sequence": number, "price": 1.25, "kind": "Regular"})
        for number in range(1, 5)
    ]

    def run(text: str, *more: str) -> tuple[int, list[str], str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        monkeypatch.setattr(contribute, "configure_logging", lambda *_: None)  # it would keep this test's stderr
        status = contribute.main([TOPIC, *options, *more])
        out, err = capsys.readouterr()
        return status, [line for line in out.splitlines() if "event" not in line], err

    with site.gateway() as gateway:
        status, out, _ = run("\n".join(lines[:2]) + "\n")
        assert (status, out) == (0, ['{"line": 1, "id": "file-1"}', '{"line": 2, "id": "file-2"}'])
        status, out, _ = run("\n".join(lines) + "\n", "--resume", "--hold", "3600")
        assert (status, out) == (0, ['{"line": 3, "id": "file-3"}', '{"line": 4, "id": "file-4"}'])
        assert run("", "--cancel", "1,3")[:2] == (0, ['{"cancelled": 1, "ids": ["file-3"]}'])
        assert run("", "--cancel", "all")[:2] == (0, ['{"cancelled": 1}'])
        status, _, err = run('{"message": "Tirade"}\n')
        assert (status, "line 1: the feed takes no 'Tirade'; it takes Trade" in err) == (2, True)
        assert await_sent(gateway, 2) == numbered(1, 3)


def test_a_contributor_continues_in_the_next_session_and_adapters_fill_gaps_of_the_former(site: GatewaySite) -> None:
    with site.connect() as client:
        with site.gateway() as gateway:
            contribution = client.contribute(TOPIC, timeout_s=PATIENCE_S)
            contribution.send(trade(1))
            contribution.send(trade(2), hold_s=0.001)
            await_sent(gateway, 2)
            contribution.send(trade(3), hold_s=HOUR_S)
            contribution.send(trade(4), hold_s=1.0)
        former, site.folder = site.folder, site.folder.with_name("next day")
        with site.gateway(session=20261122, former_folder=former) as gateway:
            contribution.send(trade(5))
            assert sorted(number for _, number in await_sent(gateway, 2)) == [4, 5]
            assert contribution.cancel(ContributionId("default", 3)) == [ContributionId("default", 3)]
            served = holder_of(gateway).replay._served
            assert served is not None
            previous = served.previous
            assert previous is not None
            assert previous.index.next_source_seqs == {1: 3}
            (datagram,) = previous.reader.packets(previous.index.covering(1, 2, 3).stretches, 1, 2, 3)
            assert list(messages_in(datagram)) == [(2, 2)]
        with pytest.raises(JournalOfOtherStream, match="has ended"), site.gateway(folder=former):
            pass
        elsewhere = site.folder.with_name("elsewhere")
        with (
            pytest.raises(JournalOfOtherStream, match="has begun in another folder"),
            site.gateway(session=20261122, folder=elsewhere, former_folder=former),
        ):
            pass


def test_with_both_a_call_waits_for_the_second_gateway_and_says_so(tmp_path: Path) -> None:
    settings = 'acknowledge_contributions = "both"'
    with gateway_site(tmp_path, pair=True, settings=settings) as site, site.connect() as client:
        with site.gateway(is_awaited=False):
            with pytest.raises(ContributionInDoubt, match="no second gateway has a complete copy of the log"):
                client.contribute(TOPIC, timeout_s=10)
            with site.gateway(tmp_path / "second", number=1, is_awaited=False) as second:
                contribution = client.contribute(TOPIC, timeout_s=PATIENCE_S)
                assert contribution.send(trade(1)) == ContributionId("default", 1)
                await_part(second, lambda: second.part.log.copy)
        assert [*(tmp_path / "second").iterdir()] == [tmp_path / "second" / "log"]


def await_standby(gateway: ContributionGateway) -> None:
    """Wait until the gateway may take over."""
    await_part(gateway, lambda: gateway.part.state is GatewayState.STANDBY)


def test_a_holder_that_stops_hands_over_at_once_with_what_is_pending(tmp_path: Path) -> None:
    with gateway_site(tmp_path, pair=True) as site, site.connect() as client, ExitStack() as running:
        first = running.enter_context(ExitStack())
        first.enter_context(site.gateway())
        second = running.enter_context(site.gateway(tmp_path / "second", number=1, is_awaited=False))
        contribution = client.contribute(TOPIC, timeout_s=PATIENCE_S)
        contribution.send(trade(1))
        held = contribution.send(trade(2), hold_s=HOUR_S)
        await_standby(second)
        first.close()
        assert contribution.send(trade(3)) == ContributionId("default", 3)
        assert contribution.cancel(held) == [held]
        assert await_sent(second, 2) == [(1, 1), (2, 3)]
        audit = (site.server.folder.path / "audit.jsonl").read_text()
        assert audit.count('"event":"contribution gateway"') >= 3  # the first term, the standby, the second term


def test_a_standby_whose_follower_dies_follows_again_and_can_take_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, deaths = FollowerJournal.append, list[str]()

    def append_unless_broken(self: FollowerJournal, index: int, segment: Segment) -> None:
        if not deaths:
            deaths.append("a bug")
            raise RuntimeError(deaths[0])
        append(self, index, segment)

    with gateway_site(tmp_path, pair=True) as site, site.connect() as client, ExitStack() as running:
        first = running.enter_context(ExitStack())
        first.enter_context(site.gateway())
        second = running.enter_context(site.gateway(tmp_path / "second", number=1, is_awaited=False))
        contribution = client.contribute(TOPIC, timeout_s=PATIENCE_S)
        contribution.send(trade(1))
        await_standby(second)
        monkeypatch.setattr(FollowerJournal, "append", append_unless_broken)
        contribution.send(trade(2))
        await_part(second, lambda: bool(deaths) and not second.part.copy_failure)
        await_standby(second)
        first.close()
        contribution.send(trade(3))
        assert await_sent(second, 3) == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize("trouble", ["the disk fails", "the folder is removed"])
def test_a_holder_that_loses_its_disk_acknowledges_nothing_more_and_ends_with_a_sentence(
    site: GatewaySite, tmp_path: Path, trouble: str
) -> None:
    log, moved = site.folder / "log", tmp_path / "moved"
    is_failing = threading.Event()

    def fault(operation: str, path: Path) -> None:
        if is_failing.is_set() and operation == "flush" and path.parent == log:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with losing_disk(site.folder.parent, tmp_path.with_name(f"{tmp_path.name}-kept"), fault), site.connect() as client:
        with site.gateway():
            contribution = client.contribute(TOPIC, timeout_s=PATIENCE_S)
            contribution.send(trade(1))
            hasty = client.contribute(TOPIC, producer="hasty", timeout_s=0)
            if trouble == "the disk fails":
                is_failing.set()
            else:
                log.rename(moved)
            with pytest.raises(ContributionInDoubt):
                hasty.send(trade(2))
            await_failure(site)
        failure = site.failures.pop()
        assert isinstance(failure, JournalError)
        assert ("the disk refused a flush" in str(failure)) == (trouble == "the disk fails")
        assert ("was removed or replaced" in str(failure)) == (trouble != "the disk fails")
        is_failing.clear()
        if moved.exists():
            moved.rename(log)
        with site.gateway() as gateway:
            assert contribution.send(trade(3)).number == 2
            await_part(gateway, lambda: sent_messages(gateway)[-1][1] == 3)
            sequences = [sequence for _, sequence in sent_messages(gateway)]
            assert sequences in ([1, 3], [1, 2, 3])  # what was in doubt is there or not, and once


def test_a_standby_whose_disk_refuses_a_flush_acknowledges_nothing_until_it_has_everything_again(
    tmp_path: Path,
) -> None:
    second_log, failed = tmp_path / "second" / "log", list[str]()
    is_failing = threading.Event()

    def fault(operation: str, path: Path) -> None:
        if is_failing.is_set() and operation == "flush" and path.parent == second_log:
            is_failing.clear()
            failed.append(path.name)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    kept = tmp_path.with_name(f"{tmp_path.name}-kept")
    with (
        gateway_site(tmp_path, pair=True) as site,
        losing_disk(site.folder.parent, kept, fault) as disk,
        site.connect() as client,
        ExitStack() as running,
    ):
        first = running.enter_context(ExitStack())
        holder = first.enter_context(site.gateway())
        second = running.enter_context(site.gateway(tmp_path / "second", number=1, is_awaited=False))
        contribution = client.contribute(TOPIC, timeout_s=PATIENCE_S)
        contribution.send(trade(1))
        await_standby(second)
        is_failing.set()
        for number in range(2, 6):
            contribution.send(trade(number))
        await_part(second, lambda: bool(failed))
        contribution.send(trade(6))
        await_part(holder, lambda: has_everything(holder, copy_id(tmp_path / "second")))
        contribution.send(trade(7))
        image = disk.image(tmp_path.with_name(f"{tmp_path.name}-image"))
        with Tailer(image / "second" / "log") as tailer:
            assert sum(len(keys_in(record)) for _, record in tailer if record[0] == Kind.NUMBERED) == 7
        first.close()
        contribution.send(trade(8))
        assert await_sent(second, 8) == numbered(1, 9)


def has_everything(holder: ContributionGateway, copy: bytes) -> bool:
    """Whether this copy is the recorded standby's, and follows."""
    part = holder.part
    position = part._membership._positions.get(copy, 0)
    return part.standby_copy == copy != b"" and position >= part.committed_index


def await_failure(site: GatewaySite) -> None:
    """Wait until a gateway has ended with an error."""
    give_up_at_s = time.monotonic() + PATIENCE_S
    while not site.failures:
        assert time.monotonic() < give_up_at_s
        time.sleep(0.01)


def test_a_former_gateway_that_the_server_names_for_a_moment_is_not_believed(tmp_path: Path) -> None:
    """The holder is cut off from the server, as if paused, and another gateway takes over. The former one does not know
    what that has accepted, and refuses the numbers that follow; a new process is unknown to it."""
    with gateway_site(tmp_path, pair=True) as site, ExitStack() as running:
        client, other = running.enter_context(site.connect()), running.enter_context(site.connect("bob"))
        former = running.enter_context(site.gateway())
        second = running.enter_context(site.gateway(tmp_path / "second", number=1, is_awaited=False))
        contribution, sent = client.contribute(TOPIC, timeout_s=PATIENCE_S), other.contribute(TOPIC)
        contribution.send(trade(1))
        sent.send(trade(2))
        named_before = contribution._target
        assert named_before is not None
        await_standby(second)
        site.reporter_of(former).stop()
        holder_of(second)  # it has taken over
        contribution.send_many([trade(3), trade(4)])
        restarted = other.contribute(TOPIC, timeout_s=PATIENCE_S)  # supersedes `sent`, at the second gateway
        assert restarted.send(trade(5)).number == 2
        for each, sequence, number in ((contribution, 6, 4), (restarted, 7, 3)):
            each._use(named_before)  # as an administration server names it that has just started
            assert each.send(trade(sequence)).number == number
        assert await_sent(second, 7) == [(at, at) for at in range(1, 8)]
        with pytest.raises(ContributionSuperseded):
            sent.send(trade(8))
