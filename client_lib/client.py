"""The entry points: `connect` makes a client, and `Client.subscribe` subscribes to topics of a feed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self, TypedDict, TypeVar, Unpack, cast, get_args, overload

from tandemfeed.client_lib.contribution.contribution import Contribution
from tandemfeed.client_lib.items import Event
from tandemfeed.client_lib.login.grant_stream import GrantStream
from tandemfeed.client_lib.login.session import Session
from tandemfeed.client_lib.messages.message import Message
from tandemfeed.client_lib.own_process import OwnProcess, check_may_connect
from tandemfeed.client_lib.reading.cursor import Cursor, cursor_file
from tandemfeed.client_lib.reading.lag import LAG_MAX, LagPolicy, OnLag
from tandemfeed.client_lib.replay.playback import Playback
from tandemfeed.client_lib.stream.sockets.shared_sockets import SharedSockets
from tandemfeed.client_lib.stream.sockets.transport_choice import Transport
from tandemfeed.client_lib.stream.starts import Start, Time, check_start, time_of
from tandemfeed.client_lib.stream.subscription import Subscription
from tandemfeed.client_lib.stream.trust.stream_trust import VerifyMode
from tandemfeed.feedcore.merge.config import CompareMode, MergerConfig
from tandemfeed.feedcore.topics import TopicEntry
from tandemfeed.transport.calls.admin_servers import check_addresses
from tandemfeed.transport.calls.credentials import CertificateFiles, Credential, SecretFile, TokenFile
from tandemfeed.transport.multicast.groups import check_interface
from tandemfeed.transport.multicast.sockets import LOOPBACK, Datagrams, Multicast
from tandemfeed.transport.profiles import PREFIX, BadProfile, profiles_path, settings

LOGIN_TIMEOUT_S = 10.0
M = TypeVar("M", bound=Message)


class Options(TypedDict, total=False):
    """The options of a subscription.

    Attributes:
        feed: the feed's name; needed only if several feeds have the topics.
        start: "live" (default): with the first packet received; "first": with the first message of the session;
            "snapshot": with the last message of each type and key (`conflate_by`), then live; a time (`datetime` with a
            zone, `numpy.datetime64`, or nanoseconds since 1970): with the first packet that has what the source sent
            since then; or by topic the first `message_seq`, or (session, message_seq). A time, or a session, may be in
            a former session: those between are delivered too. Past messages are replayed from the adapters' journals.
            If they do not reach back to a time or a snapshot's beginning, `HistoryShortened` says where they begin.
        until: a time, as for `start`: the subscription ends with what the source sent before it. With a time that is
            over, it ends when that was delivered.
        speed: deliver messages at the intervals at which the source sent them, divided by this number: 1 as recorded,
            10 ten times as fast. 0 (default): immediately. These two need `on_lag="replay"`.
        cursor: a name, or the path of a file: where the application's last run ended, the subscription begins, and how
            far the application has handled it is kept there. `start` counts for topics that are new to the cursor.
        where: deliver only messages whose fields have these values, by the field's name: one value, a list or set of
            values, or a tuple (lowest, highest), of which either may be None. All fields must match. The library
            filters after the merge, as for symbols.
        on_event: called with each event, in its place in the stream, by iterators that do not yield events. Without it,
            losses and alarms are logged as warnings, other events as information.
        on_lag: what happens if the application reads more slowly than messages arrive. "replay" (default): messages
            wait in receive queues, and those beyond are replayed from the adapters' journals. The others receive in a
            thread while the application works, and act when more than `lag_max` messages wait: "drop" drops the
            oldest, and yields `Dropped`; "conflate" keeps the newest message of each type and key; "disconnect" ends
            the subscription with `TooSlow`.
        lag_max: that number of messages (default 100,000).
        conflate_by: the field that is the key (default "symbol"), a text or an integer, for `on_lag="conflate"`, which
            keeps all messages without it, and for a snapshot, which has the last of each type of these.
        loss_report: the folder of the loss report, which `tandemfeed losses` shows (default: `losses` in
            ~/.local/state/tandemfeed, or in XDG_STATE_HOME).
        confirm: 2 delivers only messages that two adapters transmitted identically. This excludes errors and forgeries
            of a single adapter, but it waits for the slower adapter, and yields a `Gap` if only one is alive.
        compare: which second copies are compared with the delivered one; a difference yields `Diverged`.
        verify: "signed" delivers only packets that their adapter has signed, up to 10 ms later, so that no other reader
            of the channel can forge messages. "alarm" (default) delivers packets that continue the stream immediately,
            and yields `Distrusted` when a signature does not match or does not arrive; after that, it accepts only
            signed packets from that start of the adapter.
        transport: "multicast" joins the adapters' groups, "unicast" connects to their unicast addresses (TCP with
            CURVE). "auto" (default) joins the groups, and connects to an adapter from which nothing arrives there for a
            second, or if joining fails; `UnicastChosen` then says why. The packets and their merge are the same.
        merger_config: timers and limits of the merge and of gap repair; its `confirm` and `compare` are ignored.
        timeout_s: how many seconds to wait for the administration server's answer (default 10).
    """

    feed: str
    start: Start
    until: Time | None
    speed: float
    cursor: str | Path | None
    where: Mapping[str, Any]
    on_event: Callable[[Event], object] | None
    on_lag: OnLag
    lag_max: int
    conflate_by: str
    loss_report: Path | None
    confirm: Literal[1, 2]
    compare: CompareMode
    verify: VerifyMode
    transport: Transport
    merger_config: MergerConfig | None
    timeout_s: float


class Client:
    """One identity at one cluster; created by `connect`. It logs in when it is opened: by `with`, `async with`, or its
    first subscription.

    Its subscriptions share the login, one call to the administration server, and the sockets of each feed. Closing the
    client closes them, and its contributions.
    """

    def __init__(self, session: Session, multicast: Multicast) -> None:
        self._session, self._grants = session, GrantStream(session)
        self._sockets = SharedSockets(multicast)
        self._subscriptions: list[Subscription[Any]] = []
        self._contributions: list[Contribution] = []
        self._is_async = False
        self._process = OwnProcess("client")

    def open(self) -> None:
        """Log in, if the client has not yet.

        Raises:
            AuthenticationRefused: the server does not accept the identity and its credential.
            AdminUnavailable: no administration server answered; the text names the address and says what is wrong.
        """
        self._check_process()
        self._session.ensure_token()

    def _check_process(self) -> None:
        self._process.check()
        check_may_connect()

    @overload
    def subscribe(
        self, topics: Sequence[str] | str = ..., *, kind: type[M], **options: Unpack[Options]
    ) -> Subscription[M]: ...

    @overload
    def subscribe(self, topics: Sequence[str] | str = ..., **options: Unpack[Options]) -> Subscription[Any]: ...

    def subscribe(
        self, topics: Sequence[str] | str = (), *, kind: type[Any] | None = None, **options: Unpack[Options]
    ) -> Subscription[Any]:
        """Subscribe to topics of a feed, and receive its adapters by multicast or unicast.

        In an `async with` block, this returns immediately, and the subscription begins when it is first used.

        Args:
            topics: topics or patterns (`*` is one word, `#` any number of words, or none), or one of them; if empty,
                all that the policy grants. What is granted later is added: `ChannelsChanged` reports it.
            kind: the class of messages to yield, from `load_messages` or a module that `tandemfeed stubs` wrote. None:
                all messages.
            options: see `Options`.

        Raises:
            AuthorizationRefused: the feed or a topic does not exist or is not granted; the message names it.
            FeedUnknown: the server cannot use the request, for instance because several feeds have the topics.
            LimitReached: the identity has as many subscriptions open as it may have.
            AuthenticationRefused: the server no longer accepts the identity and secret.
            AdminUnavailable: no administration server answered.
            HistoryUnavailable: no adapter said where the time is with which to start, or what there is since a former
                session; or the session of `start` has not begun.
            ValueError: no message has the field `conflate_by` or a field of `where`, or such a value.
            CursorUnusable: the cursor's file cannot be read, is of another feed, or is used by another process.
        """
        self._check_process()
        if not isinstance(topics, Iterable) or not all(isinstance(topic, str) for topic in topics):
            raise TypeError(f"topics is {topics!r}; expected one topic or several, as text")
        _check_text(feed=options.get("feed", ""))
        for name, allowed in (("verify", VerifyMode), ("transport", Transport)):
            value = options.get(name)
            if value is not None and value not in get_args(allowed):
                raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(get_args(allowed))}")
        start = options.get("start", "live")
        check_start(start)
        cursor = options.get("cursor")
        config = options.get("merger_config") or MergerConfig()
        config = replace(config, confirm=options.get("confirm", 1), compare=options.get("compare", "full"))
        lag_policy = LagPolicy(
            options.get("on_lag", "replay"), options.get("lag_max", LAG_MAX), options.get("conflate_by", "symbol")
        )
        subscription = Subscription(
            self._session,
            self._grants,
            options.get("feed", ""),
            [TopicEntry(topic) for topic in ((topics,) if isinstance(topics, str) else topics)],
            self._sockets,
            start=start,
            cursor=None if cursor is None else Cursor(cursor_file(cursor)),
            kind=kind,
            on_event=options.get("on_event"),
            lag_policy=lag_policy,
            loss_folder=options.get("loss_report"),
            playback=_playback(options),
            where=options.get("where"),
            verify=options.get("verify", "alarm"),
            transport=options.get("transport", "auto"),
            merger_config=config,
            grant_timeout_s=options.get("timeout_s", 10.0),
        )
        if not self._is_async:
            subscription.open()
        self._subscriptions.append(subscription)
        return subscription

    def contribute(self, topic: str, *, producer: str = "default", timeout_s: float = 30.0) -> Contribution:
        """Contribute messages to a topic of a feed that takes contributions.

        In an `async with` block, this returns immediately, and the gateway is found when it is first used.

        Args:
            topic: of a channel, without wildcards.
            producer: under which name messages are numbered: each process of an identity needs its own, and uses it
                again after a restart. Letters, digits, '_', '-' and '.'.
            timeout_s: for how many seconds a call is tried again, while the gateway restarts or is full; 0: never.

        Raises:
            AuthorizationRefused: the topic takes no contributions, or they are not granted.
            AuthenticationRefused, AdminUnavailable: as of `open`.
            ContributionInDoubt: the gateway did not answer.
        """
        self._check_process()
        _check_text(topic=topic, producer=producer)
        contribution = Contribution(self._session, topic, producer, timeout_s)
        if not self._is_async:
            contribution.open()
        self._contributions.append(contribution)
        return contribution

    def close(self) -> None:
        """Close every subscription and contribution. Idempotent."""
        if self._process.is_inherited:  # nothing of it belongs to this process
            return
        for contribution in self._contributions:
            contribution.close()
        self._contributions.clear()
        for subscription in self._subscriptions:
            subscription.close()
        self._subscriptions.clear()
        self._grants.close()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *exception: object) -> None:
        for subscription in self._subscriptions:
            subscription.__exit__(*exception)
        self.close()

    async def __aenter__(self) -> Self:
        self._is_async = True
        await asyncio.to_thread(self.open)
        return self

    async def __aexit__(self, *exception: object) -> None:
        for subscription in self._subscriptions:
            await subscription.__aexit__(*exception)
        await asyncio.to_thread(self.close)


def connect(
    admin: str = "",
    *,
    profile: str = "",
    ca: str | Path | bytes = "",
    identity: str = "",
    secret: Credential | None = None,
    certificate_file: str | Path | None = None,
    key_file: str | Path | None = None,
    token_file: str | Path | None = None,
    secret_file: str | Path | None = None,
    interface: str = "",
    datagrams: Datagrams | Literal[""] = "",
    timeout_s: float = LOGIN_TIMEOUT_S,
) -> Client:
    """A client of a cluster: `with connect(…) as feed`, or `async with`. What is not given comes from the environment
    (TANDEMFEED_ADMIN, …) or a profile in `profiles.toml`, as for the commands.

    Args:
        admin: host:port of the administration server, or host:port,host:port if there are several.
        profile: the profile; "": that of TANDEMFEED_PROFILE or the file's default.
        ca: the cluster's certificate authority: the path of a PEM file, or its contents.
        identity: the name to log in as; with a certificate or token, "" or the name that it must have.
        secret: the secret of that identity; it is not sent (SCRAM-SHA-256).
        certificate_file: instead of a secret: a client's certificate (PEM).
        key_file: the certificate's private key (PEM).
        token_file: instead of a secret: a token of an outside issuer (JWT).
        secret_file: instead of a secret: a file that contains it. All these files are read at each login, so they may
            be renewed while the client runs.
        interface: the IP address of the network interface on which to join multicast groups; "": loopback.
        datagrams: whose sockets receive multicast: "zeromq" (or ""), or "udp", the kernel's own, which are faster and
            keep fewer datagrams for an application that pauses.
        timeout_s: how many seconds a login may take. If nothing listens at the address, or its name or certificate is
            wrong, it ends earlier, within three seconds: a server that is starting has 1.5 s to listen.

    Raises:
        ForkedProcess: this process was forked from one that had an open client.
        BadProfile: a value is missing, or the profile cannot be used.
        ValueError: this host has no such interface, there are no such sockets, an address is not host:port, or not
            exactly one way to log in is given.
    """
    check_may_connect()
    _check_text(admin=admin, identity=identity, profile=profile, interface=interface, datagrams=datagrams)
    ways = (secret, certificate_file, token_file, secret_file)
    if not admin or ca == "" or not any(way is not None for way in ways):
        known = settings(profile or None, has_credential=any(way is not None for way in ways))
        admin, ca = admin or known.get("admin", ""), known.get("ca", "") if ca == "" else ca
        identity, interface = identity or known.get("identity", ""), interface or known.get("interface", "")
        datagrams = datagrams or cast(Datagrams, known.get("datagrams", ""))
        secret_file = secret_file or known.get("secret_file")
        certificate_file = certificate_file or known.get("certificate_file")
        key_file, token_file = key_file or known.get("key_file"), token_file or known.get("token_file")
        for name, value in (("admin", admin), ("ca", ca)):
            if value == "":
                where = profiles_path()[0]
                raise BadProfile(f"{name} is missing: give it, set {PREFIX}{name.upper()}, or set it in {where}")
    check_addresses(admin)
    credential = _credential(secret, certificate_file, key_file, token_file, secret_file)
    if datagrams not in ("", *get_args(Datagrams)):
        raise ValueError(f"datagrams is {datagrams!r}; it must be 'zeromq' or 'udp'")
    multicast = Multicast(interface or LOOPBACK, datagrams or "zeromq")
    check_interface(multicast.interface)
    ca_pem = ca if isinstance(ca, bytes) else Path(ca).read_bytes()
    return Client(Session(admin, ca_pem, identity, credential, timeout_s=timeout_s), multicast)


def _credential(
    secret: Credential | None,
    certificate_file: str | Path | None,
    key_file: str | Path | None,
    token_file: str | Path | None,
    secret_file: str | Path | None,
) -> Credential:
    """The one way of logging in that was given."""
    if secret is not None and not isinstance(secret, Credential):
        raise TypeError(f"secret is of type {type(secret).__name__}; expected text")
    ways = [secret, certificate_file, token_file, secret_file]
    if ways.count(None) != len(ways) - 1 or (certificate_file is None) != (key_file is None):
        raise ValueError("give one of secret, secret_file, certificate_file with key_file, and token_file")
    if certificate_file is not None and key_file is not None:
        return CertificateFiles(Path(certificate_file), Path(key_file))
    if token_file is not None:
        return TokenFile(Path(token_file))
    if secret_file is not None:
        return SecretFile(Path(secret_file))
    assert secret is not None
    return secret


def _playback(options: Options) -> Playback | None:
    """Raises ValueError: the options cannot be used together."""
    until, speed = options.get("until"), options.get("speed", 0)
    if not isinstance(speed, int | float) or not 0 <= speed < float("inf"):
        raise ValueError(f"speed is {speed!r}; it must be 0 (without waiting) or a positive number")
    if until is None and not speed:
        return None
    if options.get("on_lag", "replay") != "replay":
        raise ValueError("until and speed need on_lag='replay', because what is played back waits")
    if until is not None and not isinstance(until, Time):
        raise ValueError(f"until is {until!r}; it must be a time")
    if until is not None:
        check_start(until)
    return Playback(None if until is None else time_of(until), speed)


def _check_text(**arguments: object) -> None:
    for name, value in arguments.items():
        if not isinstance(value, str):
            raise TypeError(f"{name} is {value!r}; expected text")
