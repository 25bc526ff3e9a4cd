"""The lifeline's own process: waits for the adapter's end, and reports it to the admin server.

`lifeline` starts it, and `guard_process` loads this module in the background.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import sys
import threading
import time

import grpc

from tandemfeed.adapter.reporting.lifeline import REPORT_TIMEOUT_S, SharedPage
from tandemfeed.runtime.threads import end_process, start_thread
from tandemfeed.transport.calls.admin_servers import AdminServers
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.credentials import from_words
from tandemfeed.transport.calls.login import AuthenticationRefused
from tandemfeed.transport.calls.notices import TAKEOVER_S
from tandemfeed.transport.calls.notices.adapter import DeathNoticeSender
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.transport.calls.token_source import TokenSource
from tandemfeed.transport.process_shell import Connection, configure_logging
from tandemfeed.transport.scheduling import run_in_background
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc

LOG = logging.getLogger("tandemfeed.adapter.reporting.lifeline")
_Messages = queue.SimpleQueue[admin_pb2.AdapterEnded | None]


class Guard:
    """Keeps a call to the active admin server open, so that one message is enough, and knows
    the address for a datagram, which arrives sooner.

    Owner: `_lock` for the messages, the datagram's sender and whether the adapter has ended; its thread for the rest.
    If the thread fails, this process ends, and the adapter reports that it has no lifeline.
    """

    def __init__(self, connection: Connection) -> None:
        self._servers = AdminServers(connection.admin)
        self._ca_pem = connection.ca_pem
        self._tokens = TokenSource(self._servers, connection.ca_pem, connection.identity, connection.credential)
        self._messages = _Messages()  # of the open call
        self._sender: DeathNoticeSender | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = start_thread(self._keep_calling, "guard", end_process)

    def report_end(self, incarnation: int, key: bytes) -> None:
        """Report that the adapter has ended."""
        with self._lock:
            if is_sent := self._sender is not None:
                self._sender.send(key, incarnation)
        if is_sent:
            time.sleep(TAKEOVER_S)  # nearly always the datagram suffices
        with self._lock:
            self._over.set()
            self._messages.put(admin_pb2.AdapterEnded(incarnation=incarnation))
            self._messages.put(None)
        self._thread.join(REPORT_TIMEOUT_S)

    def _keep_calling(self) -> None:
        """Call until the end of the adapter is reported, or is lost with its call."""
        while True:
            address = self._servers.current
            try:
                self._call(address)
                return
            except (grpc.RpcError, AuthenticationRefused) as refused:
                is_renewed = self._tokens.renew_after(refused)  # else the refused token would be sent again and again
                pause_s = 0.0 if is_renewed else self._servers.move_on(address, refused)
            with self._lock:
                if self._over.is_set():
                    return  # the report was lost with the call; the end of the adapter's stream comes later
                self._messages.put(None)  # ends the broken call's reader
                self._messages = _Messages()
            self._over.wait(pause_s)

    def _call(self, address: str) -> None:
        """Call one server, and keep the call until it has the report."""
        with open_channel(address, self._ca_pem, ADMIN_SERVER, self._tokens) as channel:
            stub = admin_pb2_grpc.AdapterRegistryStub(channel)
            messages = iter(self._messages.get, None)
            call = stub.Guard.future(messages, wait_for_ready=not self._servers.are_several)
            call.initial_metadata()  # waits until the server answers
            self._find(address)
            LOG.info("guarded", extra={"server": address})
            self._servers.answered(address)
            call.result()

    def _find(self, address: str) -> None:
        with self._lock:
            if self._sender is not None:
                self._sender.close()
            try:
                self._sender = DeathNoticeSender(address)
            except OSError as unknown:
                self._sender = None
                LOG.warning("cannot send a death notice; a kill will be noticed later", extra={"why": str(unknown)})


def watch(descriptor: int) -> None:
    """Wait for the adapter's end, and report it.

    Args:
        descriptor: of the shared page.
    """
    configure_logging("lifeline", "info")
    page = SharedPage(descriptor)
    words = json.load(sys.stdin)
    guard = Guard(Connection(words["admin"], words["ca"].encode(), words["identity"], from_words(words["credential"])))
    if page.lock() and page.incarnation:
        guard.report_end(page.incarnation, page.key)
        # The report is out. A normal interpreter exit takes some 25 ms of processor time, which a takeover needs now.
        run_in_background()
        os._exit(0)
