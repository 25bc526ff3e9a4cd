"""What arrives reaches the application before anything else is opened, due or reported; none of that is forgotten."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import zmq

from tandemfeed.client_lib.items import Revoked
from tandemfeed.client_lib.login.grant import Grant, TopicsRevoked
from tandemfeed.client_lib.stream import loop
from tandemfeed.client_lib.stream.loop import Letters, Loop
from tandemfeed.client_lib.stream.sockets import feed_sockets
from tandemfeed.client_lib.stream.sockets.feed_sockets import FeedSockets
from tandemfeed.client_lib.stream.sockets.inbox import Inbox
from tandemfeed.feedcore.counters import CounterSet
from tandemfeed.feedcore.wire.refusal import Refusal
from tests.client_lib.toy_cluster import CHANNEL_ID, TOPIC, ToyCluster, packet

DUE_NS = 1_000


class ScriptedSockets:
    """Each wait is a step of the script: what it does with the inbox."""

    deadline_ns = None
    has_more = False
    turn_count_max = 32

    def __init__(self, *steps: Callable[[Inbox], object]) -> None:
        self._steps = deque(steps)
        self.receive_queue_count_max = 100

    def join(self, inbox: Inbox, _grant: Grant, _transport: str) -> ScriptedSockets:
        return self

    def leave(self, *_: object) -> None: ...
    def on_heard(self, group: str, now_ns: int) -> None: ...
    def on_timer(self, now_ns: int) -> None: ...

    def wait(self, inbox: Inbox, _wait_ms: int) -> bool:
        self._steps.popleft()(inbox)
        return True


class RecordingChannels:
    """Delivers what arrives, and has a timer that is always due."""

    def __init__(self) -> None:
        self.grant, self.ready = SimpleNamespace(adapters={}), deque[Any]()
        self.losses = SimpleNamespace(found=[], is_behind=False, take=self._take_losses)
        self.timers_ns: list[int] = []

    def on_opened(self, opened: Any, _sender: str) -> bool:
        self.ready.append(opened)
        return True

    def next_deadline_ns(self) -> int:
        return DUE_NS

    def on_timer(self, now_ns: int) -> None:
        self.timers_ns.append(now_ns)

    def _take_losses(self) -> list[Any]:
        found: list[Any] = self.losses.found
        self.losses.found = []
        return found


class Scripted:
    """A loop with scripted sockets; `now_ns` is its clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *steps: Callable[[Inbox], object]) -> None:
        self.now_ns, self.reported = DUE_NS, list[Any]()
        monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic_ns=lambda: self.now_ns))
        self.letters, self.counters, self.channels = Letters(), CounterSet(), RecordingChannels()
        report = SimpleNamespace(write=self.reported.extend)
        given = SimpleNamespace(), self.letters, self.counters, report, lambda _: self.channels, ScriptedSockets(*steps)
        make: Any = Loop
        self.loop: Any = make(*given, "multicast", reports_lag=True)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Scripted]]:
    made: list[Scripted] = []

    def make(*steps: Callable[[Inbox], object]) -> Scripted:
        made.append(Scripted(monkeypatch, *steps))
        return made[-1]

    yield make
    for each in made:
        each.loop.close()


def arrive(*messages: Any) -> Callable[[Inbox], None]:
    def step(inbox: Inbox) -> None:
        for each in messages:
            inbox.put((each, "group", ""))

    return step


def test_messages_are_returned_before_what_is_due_and_the_next_call_does_that_as_of_their_turn(
    scripted: Callable[..., Scripted],
) -> None:
    one = scripted(arrive("first"), arrive("second"))
    assert one.loop.poll(None) == ["first"]
    assert not one.channels.timers_ns
    turn_ns, one.now_ns = one.now_ns, one.now_ns + 10**10  # the application takes its time, while datagrams wait
    assert one.loop.poll(None) == ["second"]
    assert one.channels.timers_ns == [turn_ns]  # so no stream that waits in a queue is called silent


def test_a_turn_without_messages_ends_with_what_is_due(scripted: Callable[..., Scripted]) -> None:
    one = scripted(arrive())
    assert one.loop.poll(0) == []
    assert one.channels.timers_ns == [DUE_NS]


def test_what_the_last_turn_refused_is_counted_at_once_and_what_it_lost_is_reported_at_the_end(
    scripted: Callable[..., Scripted],
) -> None:
    def step(inbox: Inbox) -> None:
        inbox.refuse(Refusal.FORGED)
        one.channels.losses.found.append("loss")
        arrive("message")(inbox)

    one = scripted(step)
    assert one.loop.poll(None) == ["message"]
    assert one.counters.refusals[Refusal.FORGED] == 1
    one.loop.close()
    assert one.reported == ["loss"]


def test_a_revocation_in_the_turn_of_a_message_follows_it_and_ends_the_loop(scripted: Callable[..., Scripted]) -> None:
    def step(inbox: Inbox) -> None:
        one.letters.grants.put(TopicsRevoked((TOPIC,), "gone", is_last=True))
        arrive("message")(inbox)

    one = scripted(step)
    assert one.loop.poll(None) == ["message"]
    (last,) = one.loop.poll(None)
    assert isinstance(last, Revoked)
    assert last.is_last
    assert one.loop.is_over
    assert one.loop.poll(None) == []


class QueuedReceivers:
    """One receiver, whose datagrams are given; its socket is any object."""

    def __init__(self, datagrams: list[bytes]) -> None:
        self.group, self.chosen, self.polled, self.last_sender = "group", list[Any](), [(self, zmq.POLLIN)], ""
        self.datagrams = datagrams

    def of_socket(self, socket: object) -> QueuedReceivers | None:
        return self if socket is self else None

    def receive(self) -> bytes | None:
        return self.datagrams.pop(0) if self.datagrams else None

    def may_have_more(self) -> bool:
        return bool(self.datagrams)

    def apply(self, *_: object) -> list[Any]:
        return []

    def next_deadline_ns(self) -> None: ...
    def close(self) -> None: ...


def test_the_datagram_that_was_waited_for_comes_alone_and_those_that_wait_come_together(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealer = cluster.adapters[0].sealer
    receivers = QueuedReceivers([sealer.seal(packet(number, number, 1), 0) for number in range(1, 5)])
    arrived = iter([[], [(receivers, 1)], [(receivers, 1)]])  # nothing yet; after a wait; those that wait
    waits_ms: list[int] = []

    def poll(_polled: object, wait_ms: int) -> list[Any]:
        waits_ms.append(wait_ms)
        return next(arrived)

    with cluster.connect() as client, client.subscribe([TOPIC], feed="equities") as subscription:
        grant = subscription.grant
    assert CHANNEL_ID in grant.topics_by_channel
    made: Any = receivers
    sockets, inbox = FeedSockets(grant.feed_id, lambda _: made), Inbox(100, 0, lambda: None)
    sockets.join(inbox, grant)
    monkeypatch.setattr(feed_sockets, "zmq", SimpleNamespace(zmq_poll=poll, POLLIN=zmq.POLLIN))
    sockets.wait(inbox, 1_000)
    assert (len(inbox), waits_ms) == (1, [0, 1_000])
    inbox.take()
    sockets.wait(inbox, 1_000)
    assert (len(inbox), waits_ms) == (3, [0, 1_000, 0])
    sockets.leave(inbox)
    sockets.close()
