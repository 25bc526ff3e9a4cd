"""The way in: `connect` proves who we are, `Client.subscribe` asks for a feed and returns its merged stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from client_lib.session import Session
from client_lib.stream_trust import VerifyMode
from client_lib.subscription import Subscription
from feedcore.merge.config import CompareMode, MergerConfig


class Client:
    """One identity connected to one administration server; made by `connect`.

    Closing it closes its subscriptions.
    """

    def __init__(self, session: Session, interface: str) -> None:
        self._session = session
        self._interface = interface
        self._subscriptions: list[Subscription] = []

    def subscribe(
        self,
        feed: str,
        topics: Sequence[str] = (),
        start: Literal["live"] | int = "live",
        *,
        confirm: Literal[1, 2] = 1,
        compare: CompareMode = "full",
        verify: VerifyMode = "alarm",
        merger_config: MergerConfig | None = None,
        timeout_s: float = 10.0,
    ) -> Subscription:
        """Subscribe to a feed and join its adapters' multicast groups.

        Args:
            feed: the feed's name.
            topics: the channels wanted, by topic; none: all that the policy grants.
            start: "live", from the first packet heard; or the `message_seq` to begin with, which is replayed from the
                adapters' journals as far as it is past (per channel).
            confirm: 2 delivers only what two adapters transmitted equally: nothing that one adapter alone made up or
                got wrong, at the price of waiting for the slower one, and of a `Gap` where only one is alive.
            compare: which second copies are compared with what was delivered, for `Diverged`.
            verify: "signed" delivers only what its adapter has signed, up to 10 ms later: nothing that another reader
                of the channel made up. "alarm" delivers at once what goes on where the stream is, and raises
                `Distrusted` when a signature does not fit or does not come; from then on it takes only what is signed
                of that start of the adapter.
            merger_config: timers and limits of merge and gap repair; its confirm and compare do not count.
            timeout_s: how long the administration server may take to answer.

        Raises:
            AuthorizationRefused: the policy does not grant a topic; the message names it.
            FeedUnknown, AuthenticationRefused, AdminUnavailable: as they say.
        """
        if start != "live" and start < 1:
            raise ValueError(f"start is {start}: message sequence numbers begin at 1")
        if verify not in get_args(VerifyMode):
            raise ValueError(f"verify is {verify!r}: one of {', '.join(get_args(VerifyMode))}")
        subscription = Subscription(
            self._session,
            feed,
            tuple(topics),
            self._interface,
            verify=verify,
            start_message_seq=None if start == "live" else start,
            merger_config=replace(merger_config or MergerConfig(), confirm=confirm, compare=compare),
            grant_timeout_s=timeout_s,
        )
        self._subscriptions.append(subscription)
        return subscription

    def close(self) -> None:
        """Close every subscription. Idempotent."""
        for subscription in self._subscriptions:
            subscription.close()
        self._subscriptions.clear()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(
    *,
    admin: str,
    ca: str | Path | bytes,
    identity: str,
    secret: str,
    interface: str = "127.0.0.1",
    timeout_s: float = 10.0,
) -> Client:
    """Log in to a cluster.

    Args:
        admin: host:port of the administration server; host:port,host:port if there are several, one of them active.
        ca: the cluster's certificate authority: a PEM file's path, or its bytes.
        identity: who we are.
        secret: what proves it; it does not travel (SCRAM-SHA-256).
        interface: IP address of the network interface on which to join multicast groups.

    Raises:
        AuthenticationRefused: the server does not accept identity and secret.
        AdminUnavailable: no answer.
    """
    ca_pem = ca if isinstance(ca, bytes) else Path(ca).read_bytes()
    session = Session(admin, ca_pem, identity, secret, timeout_s=timeout_s)
    session.ensure_token()
    return Client(session, interface)
