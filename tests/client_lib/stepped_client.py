"""What clients do on a host whose clock is set by an hour, back and forth. Run by `test_client_clock_steps`.

Everything is done immediately after each step: nothing may be refused or stand still until the clock has caught up.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandemfeed.client_lib import AuthenticationRefused, Client, LagEnded, Lagging, Live, Stale, Subscription
from tandemfeed.client_lib.contribution.contribution import Contribution
from tandemfeed.client_lib.items import Batch, Item
from tandemfeed.client_lib.login import session
from tests.client_lib.beating import Beating
from tests.client_lib.toy_cluster import TOPIC, ToyCluster, packet, subscribe_and_hear_all
from tests.client_lib.toy_gateway import ToyGateway
from tests.stepped_clock import is_stepped, set_clock

HOUR = 3_600
SOON_S = 30.0
USUAL = Batch, Live, Stale, Lagging, LagEnded  # no adapter sends, and no subscription is read, between two checks


def await_so(what: str, is_so: Callable[[], object]) -> None:
    """Wait for a short while."""
    deadline = time.monotonic() + SOON_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


class Scene:
    """A subscription whose login is renewed every second, one with a cursor, and a contribution."""

    def __init__(self, cluster: ToyCluster, client: Client, folder: Path) -> None:
        self.cluster, self.client, self.path = cluster, client, folder / "cursor.json"
        self.gateway = ToyGateway(cluster)
        self.subscription = subscribe_and_hear_all(cluster, client)
        self.contribution: Contribution = client.contribute(TOPIC)
        self.reader: Subscription[Any] = client.subscribe(feed="equities", start="first", cursor=self.path)
        self.next_seq = 1

    def check(self) -> None:
        self.check_messages()
        self.check_login()
        self.check_contribution()

    def check_messages(self) -> None:
        """Messages arrive, those that were lost too; nothing is accused; the cursor is stored."""
        first, self.next_seq = self.next_seq, self.next_seq + 10
        for adapter in self.cluster.adapters:
            adapter.lose(packet(first, first, 5))
            adapter.send(packet(first + 5, first + 5, 5))
        beating = Beating(self.cluster, first + 10)
        try:
            self.take(self.subscription, first + 9)
            self.take(self.reader, first + 9)
            await_so("the cursor is not stored", lambda: self.reader.poll(0.01) or self.stored() == first + 10)
        finally:
            beating.stop()

    def take(self, subscription: Subscription[Any], last_seq: int) -> None:
        found: list[Item] = []

        def is_complete() -> bool:
            found.extend(subscription.poll(0.05))
            return any(isinstance(item, Batch) and item.end_message_seq > last_seq for item in found)

        await_so(f"message {last_seq} did not arrive", is_complete)
        assert not (wrong := [item for item in found if not isinstance(item, USUAL)]), wrong

    def stored(self) -> int:
        topics = json.loads(self.path.read_bytes())["topics"] if self.path.exists() else {}
        return int(topics[TOPIC]["next_message_seq"]) if topics else 0

    def check_login(self) -> None:
        """Refused clients are refused, others log in, and the open one renews its login."""
        admin, before = self.cluster.admin, len(self.renewals)
        await_so("the login is not renewed", lambda: len(self.renewals) > before)
        with pytest.raises(AuthenticationRefused):
            self.cluster.connect("wrong").open()
        logins = admin.logins
        with self.cluster.connect() as client:
            client.open()
        assert admin.logins > logins
        self.client._session.forget_token(self.client._session.current_token())  # as if a service had refused it
        self.client.open()
        assert self.client._session.current_token()

    @property
    def renewals(self) -> list[object]:
        return [each for each in self.cluster.admin.requests if each.HasField("renew")]

    def check_contribution(self) -> None:
        number = len(self.gateway.accepted) + 1
        assert self.contribution.send(b"message").number == number == len(self.gateway.accepted)


def check_history(cluster: ToyCluster, client: Client, next_seq: int) -> None:
    """History up to now ends by itself, although the clock is set back meanwhile."""
    beating = Beating(cluster, next_seq)
    with client.subscribe(feed="equities", start="first", until=time.time_ns()) as subscription:
        await_so("nothing arrives", lambda: subscription.poll(0.01))
        set_clock(-HOUR)

        def has_ended() -> bool:
            subscription.poll(0.01)
            return subscription.is_closed

        await_so("the history does not end", has_ended)
    beating.stop()


def main(folder: Path) -> None:
    """Step the clock, and do everything after each step."""
    assert is_stepped(), "the clock of this process is not stepped"
    session.LIFE_MIN_NS = 1_000_000_000
    cluster = ToyCluster(token_life_s=2)
    with cluster.connect() as client:
        scene = Scene(cluster, client, folder)
        scene.check()
        for offset_s in (HOUR, 0, -HOUR, 0):
            set_clock(offset_s)
            scene.check()
        check_history(cluster, client, scene.next_seq)
        scene.gateway.close()
    cluster.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
