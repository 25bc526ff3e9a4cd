"""Follows which adapter of a feed is active, and the state of each adapter, through updates from the admin server.

While the server is away the last update stays in force and `is_connected` is false; the watch reconnects by itself.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import grpc

from tandemfeed.deploy.cluster.processes import ProcessFailed
from tandemfeed.runtime.threads import mark_unhealthy, start_thread
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.transport.calls.token_source import TokenSource
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc

RETRY_PAUSE_S = 0.1


class ClusterWatch:
    """A watch on one feed.

    Args:
        identity, secret: of a subscriber to the feed.
        check: called while waiting; raises when waiting is pointless because a process has crashed.

    Attributes:
        epochs_seen: the number of epochs that had an active; epoch numbers have gaps, because a server reserves them.
        connections_seen: the number of times that the server accepted this watch.
    """

    def __init__(
        self, admin: str, ca_pem: bytes, identity: str, secret: str, feed: str, check: Callable[[], None]
    ) -> None:
        self.feed = feed
        self.active = ""
        self.epoch = 0
        self.epochs_seen = 0
        self.connections_seen = 0
        self.states: dict[str, str] = {}
        self.is_connected = False
        self._newest_epoch = 0  # of those that had an active
        self._check = check
        self._changed = threading.Condition()
        self._is_closed = threading.Event()
        self._tokens = TokenSource(admin, ca_pem, identity, secret)
        self._tokens(ADMIN_SERVER)  # logs in
        self._channel = open_channel(admin, ca_pem, ADMIN_SERVER, self._tokens)
        self._updates: grpc.Call | None = None
        self._failure: BaseException | None = None
        start_thread(self._keep_reading, f"watch-{feed}", self._on_failed)

    @property
    def backups(self) -> list[str]:
        """The adapters that are not active."""
        return sorted(name for name in self.states if name != self.active)

    @property
    def failed(self) -> list[str]:
        """The adapters that left the group as failed."""
        return sorted(name for name, state in self.states.items() if state == "failed")

    @property
    def is_healthy(self) -> bool:
        """True if one adapter is active and all others are synchronised."""
        states = dict(self.states)
        return (
            self.is_connected
            and states.pop(self.active, "") == "active"
            and bool(states)
            and all(state == "synchronized" for state in states.values())
        )

    def wait_for(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait for a condition on this object.

        Raises:
            ProcessFailed: not in time; the text has `what` and the last known state.
        """

        def is_met() -> bool:
            self._check()
            if self._failure is not None:
                raise ProcessFailed(f"the watch on {self.feed} has failed: {self._failure!r}") from self._failure
            return condition()

        with self._changed:
            if not self._changed.wait_for(is_met, timeout_s):
                raise ProcessFailed(f"timed out after {timeout_s:.0f} s waiting for: {what} ({self})")

    def await_healthy(self, timeout_s: float) -> None:
        """Wait until one adapter is active and all others are synchronised.

        Raises:
            ProcessFailed: not in time.
        """
        self.wait_for(lambda: self.is_healthy, timeout_s, "one active, the others synchronised")

    def check_again(self) -> None:
        """Make the waiting threads check again, because something else has changed."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Stop watching."""
        self._is_closed.set()
        if self._updates is not None:
            self._updates.cancel()
        self._channel.close()

    def __str__(self) -> str:
        server = "" if self.is_connected else "the admin server cannot be reached; last known: "
        states = ", ".join(f"{name} {state or 'unknown'}" for name, state in sorted(self.states.items()))
        return f"feed {self.feed}: {server}active adapter {self.active or 'none'}, epoch {self.epoch}, states {states}"

    def _on_failed(self, name: str, failure: BaseException) -> None:
        """What this object says is not the present state any more, so every wait fails."""
        mark_unhealthy(name, failure)
        with self._changed:
            self._failure, self.is_connected = failure, False
            self._changed.notify_all()

    def _keep_reading(self) -> None:
        while not self._is_closed.is_set():
            with contextlib.suppress(ValueError):  # `close` has closed the channel during the call
                try:
                    self._read()
                except grpc.RpcError as ended:  # the server has ended, or does not accept the token any more
                    self._tokens.renew_after(ended)
            with self._changed:
                self.is_connected = False
                self._changed.notify_all()
            self._is_closed.wait(RETRY_PAUSE_S)

    def _read(self) -> None:
        stub = admin_pb2_grpc.StreamAdministrationStub(self._channel)
        subscribe = admin_pb2.SubscribeRequest(subscription_id=1, feed=self.feed)
        requests = iter([admin_pb2.SubscriptionRequest(request_id=1, subscribe=subscribe)])
        updates = stub.Subscribe(requests, wait_for_ready=True)
        self._updates = updates
        for update in updates:
            grant = update.grant
            with self._changed:
                names = {adapter.adapter_id: adapter.name for adapter in grant.adapters}
                self.states = {adapter.name: adapter.replica_state for adapter in grant.adapters}
                self.active, self.epoch = names.get(grant.active.adapter_id, ""), grant.active.epoch
                if self.active and self.epoch > self._newest_epoch:
                    self._newest_epoch, self.epochs_seen = self.epoch, self.epochs_seen + 1
                self.connections_seen += not self.is_connected
                self.is_connected = True
                self._changed.notify_all()
