"""The entry points: `connect` authenticates, `Client.subscribe` subscribes to a feed and returns its merged stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from tandemfeed.client_lib.login.grant_stream import GrantStream
from tandemfeed.client_lib.login.session import Session
from tandemfeed.client_lib.stream.stream_trust import VerifyMode
from tandemfeed.client_lib.stream.subscription import Subscription
from tandemfeed.client_lib.stream.transport_choice import Transport
from tandemfeed.feedcore.merge.config import CompareMode, MergerConfig
from tandemfeed.feedcore.topics import TopicEntry
from tandemfeed.transport.calls.credentials import CertificateFiles, Credential, TokenFile
from tandemfeed.transport.dgram import check_interface


class Client:
    """One identity, logged in to a cluster; created by `connect`.

    Closing the client closes its subscriptions.
    """

    def __init__(self, session: Session, interface: str) -> None:
        self._session, self._grants = session, GrantStream(session)
        self._interface = interface
        self._subscriptions: list[Subscription] = []

    def subscribe(
        self,
        feed: str,
        topics: Sequence[str] | str = (),
        start: Literal["live"] | int = "live",
        *,
        confirm: Literal[1, 2] = 1,
        compare: CompareMode = "full",
        verify: VerifyMode = "alarm",
        transport: Transport = "auto",
        merger_config: MergerConfig | None = None,
        timeout_s: float = 10.0,
    ) -> Subscription:
        """Subscribe to a feed, and receive its adapters by multicast or unicast.

        Args:
            feed: the feed's name.
            topics: topics or patterns (`*` is one word, `#` any number of words, or none), or one of them; if empty,
                all that the policy grants. What is granted later is added: `ChannelsChanged` reports it.
            start: "live": begin with the first packet received; or the `message_seq` to begin with, on each channel.
                Past messages are replayed from the adapters' journals.
            confirm: 2 delivers only messages that two adapters transmitted identically. This excludes errors and
                forgeries of a single adapter, but it waits for the slower adapter, and yields a `Gap` if only one is
                alive.
            compare: which second copies are compared with the delivered one; a difference yields `Diverged`.
            verify: "signed" delivers only packets that their adapter has signed, up to 10 ms later, so that no other
                reader of the channel can forge messages. "alarm" delivers packets that continue the stream immediately,
                and yields `Distrusted` when a signature does not match or does not arrive; after that, it accepts only
                signed packets from that start of the adapter.
            transport: "multicast" joins the adapters' groups, "unicast" connects to their unicast addresses (TCP with
                CURVE). "auto" joins the groups, and connects to an adapter from which nothing arrives there for a
                second, or if joining fails; `UnicastChosen` then says why. The packets and their merge are the same.
            merger_config: timers and limits of the merge and of gap repair; its `confirm` and `compare` are ignored.
            timeout_s: how long to wait for the administration server's answer.

        Raises:
            AuthorizationRefused: the feed or a topic does not exist or is not granted; the message names it.
            FeedUnknown: the server cannot use the request.
            LimitReached: the identity has as many subscriptions open as it may have.
            AuthenticationRefused: the server no longer accepts the identity and secret.
            AdminUnavailable: no administration server answered.
        """
        _check_text(feed=feed)
        if not isinstance(topics, Iterable) or not all(isinstance(topic, str) for topic in topics):
            raise TypeError(f"topics is {topics!r}; expected one topic or several, as text")
        if start != "live" and not (isinstance(start, int) and start >= 1):
            raise ValueError(f"start is {start!r}; it must be 'live', or a message_seq of at least 1")
        if verify not in get_args(VerifyMode):
            raise ValueError(f"verify is {verify!r}; it must be one of {', '.join(get_args(VerifyMode))}")
        if transport not in get_args(Transport):
            raise ValueError(f"transport is {transport!r}; it must be one of {', '.join(get_args(Transport))}")
        subscription = Subscription(
            self._session,
            self._grants,
            feed,
            [TopicEntry(topic) for topic in ((topics,) if isinstance(topics, str) else topics)],
            self._interface,
            verify=verify,
            transport=transport,
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
        self._grants.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(
    *,
    admin: str,
    ca: str | Path | bytes,
    identity: str = "",
    secret: Credential | None = None,
    certificate_file: str | Path | None = None,
    key_file: str | Path | None = None,
    token_file: str | Path | None = None,
    interface: str = "127.0.0.1",
    timeout_s: float = 10.0,
) -> Client:
    """Log in to a cluster.

    Args:
        admin: host:port of the administration server, or host:port,host:port if there are several.
        ca: the cluster's certificate authority: the path of a PEM file, or its contents.
        identity: the name to log in as; with a certificate or token, "" or the name that it must have.
        secret: the secret of that identity; it is not sent (SCRAM-SHA-256).
        certificate_file, key_file: instead of a secret: a client's certificate and its private key (PEM).
        token_file: instead of a secret: a token of an outside issuer (JWT). These files are read at each login, so they
            may be renewed while the client runs.
        interface: the IP address of the network interface on which to join multicast groups.
        timeout_s: how long a login may take. If nothing listens at the address, or its name or certificate is wrong,
            `connect` gives up earlier, within three seconds: a server that is starting has 1.5 s to listen.

    Raises:
        AuthenticationRefused: the server does not accept the identity and its credential.
        AdminUnavailable: no administration server answered; the text names the address and says what is wrong.
        ValueError: this host has no such interface, or not exactly one way to log in is given.
    """
    _check_text(admin=admin, identity=identity)
    credential = _credential(secret, certificate_file, key_file, token_file)
    check_interface(interface)
    ca_pem = ca if isinstance(ca, bytes) else Path(ca).read_bytes()
    session = Session(admin, ca_pem, identity, credential, timeout_s=timeout_s)
    session.ensure_token()
    return Client(session, interface)


def _credential(
    secret: Credential | None,
    certificate_file: str | Path | None,
    key_file: str | Path | None,
    token_file: str | Path | None,
) -> Credential:
    """The one way of logging in that was given."""
    if secret is not None and not isinstance(secret, Credential):
        raise TypeError(f"secret is of type {type(secret).__name__}; expected text")
    if [secret, certificate_file, token_file].count(None) != 2 or (certificate_file is None) != (key_file is None):
        raise ValueError("give one of secret, certificate_file with key_file, and token_file")
    if certificate_file is not None and key_file is not None:
        return CertificateFiles(Path(certificate_file), Path(key_file))
    if token_file is not None:
        return TokenFile(Path(token_file))
    assert secret is not None
    return secret


def _check_text(**arguments: object) -> None:
    for name, value in arguments.items():
        if not isinstance(value, str):
            raise TypeError(f"{name} is {value!r}; expected text")
