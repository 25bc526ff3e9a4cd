"""An admin server and a contribution gateway in the test's process, with real TLS, logins, tokens and files."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tandemfeed.admin_server.server import AdminServer
from tandemfeed.client_lib import Client, connect
from tandemfeed.deploy.cluster.ports import free_ports
from tandemfeed.feedcore.range_set import RangeSet
from tandemfeed.spark_feed.contributions.gateway import ContributionGateway
from tandemfeed.spark_feed.contributions.holder import Holder
from tandemfeed.spark_feed.contributions.options import ContributionOptions
from tandemfeed.spark_feed.sending.gateway import describe_feed
from tandemfeed.spark_feed.sending.source_reports import SourceReporter
from tandemfeed.transport.multicast.sockets import Multicast
from tandemfeed.transport.process_shell import Connection
from tests.admin_server.cluster_files import ca_of, running_server, secret_of
from tests.spark_feed.contributions.contribution_material import FORMATS, messages_in

FEED, FEED_ID, TOPIC = "resale", 3, "resale.ticks"
LOOPBACK = "127.0.0.1"
PATIENCE_S = 60.0
CLUSTER = """
[[feed]]
feed_id = 3
name = "resale"
session = 20261121
message_model = "{formats}/tick.xml"
source_replay_endpoint = "127.0.0.1:{rpc}"
source_lines = "open"
[[feed.table]]
id = "contributions"
file = "{formats}/contribution-to-tick.xml"
source_format = "{formats}/contribution.xml"
[[feed.channel]]
channel_id = 1
topic = "resale.ticks"
source_stream_ids = [1]
table = "contributions"
[[feed.channel]]
channel_id = 2
topic = "resale.copies"
also_reads = [1]
table = "contributions"
[[feed.source_stream]]
source_stream_id = 1
name = "contributions"
group = "239.192.7.1:{group}"
contributions = "127.0.0.1:{rpc}"
[[feed.adapter]]
adapter_id = 1
name = "a"
identity = "adapter-a"
groups = {{ 1 = "239.192.7.2:{output}", 2 = "239.192.7.3:{copies}" }}
"""
POLICY = """
[identity.adapter-a]
roles = ["adapter"]
[identity.source]
roles = ["source"]
[identity.reader]
roles = ["client"]
subscribe = ["resale.#"]
[identity.operator]
roles = ["admin"]
[identity.alice]
contribute = ["resale.*"]
[identity.bob]
contribute = ["resale.ticks"]
"""


class _Stop:
    """A StopSignal that leaves the test's signals alone."""

    def __init__(self) -> None:
        self.is_set = False
        self._fd = os.eventfd(0)

    def fileno(self) -> int:
        return self._fd

    def set(self) -> None:
        self.is_set = True
        os.eventfd_write(self._fd, 1)


class GatewaySite:
    """A running admin server; `gateway` runs the gateway in a thread."""

    def __init__(self, server: AdminServer, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.failures: list[BaseException] = []  # with which gateways ended; a test that expects one takes it away
        self._reporters: dict[ContributionGateway, SourceReporter] = {}

    def connect(self, identity: str = "alice") -> Client:
        """Connect as an application does."""
        return connect(
            admin=self.server.endpoint,
            ca=ca_of(self.server),
            identity=identity,
            secret=secret_of(self.server, identity),
        )

    def reporter_of(self, gateway: ContributionGateway) -> SourceReporter:
        """What reports a gateway to the admin server; a gateway whose reporter is stopped is cut off from it."""
        return self._reporters[gateway]

    @contextmanager
    def gateway(
        self, folder: Path | None = None, *, number: int = 0, is_awaited: bool = True, **options: Any
    ) -> Iterator[ContributionGateway]:
        """Run a gateway of the feed.

        Args:
            is_awaited: until it holds the contributions and serves.
        """
        state = self.server.folder.path
        secret = secret_of(self.server, "source")
        connection = Connection(self.server.endpoint, ca_of(self.server), "source", secret)
        description = describe_feed(connection, FEED)
        endpoint = description.source_streams[0].contribution_endpoints[number]
        gateway = ContributionGateway(
            ContributionOptions(
                feed=FEED,
                folder=folder or self.folder,
                source_format=FORMATS / "contribution.xml",
                endpoint=endpoint,
                rpc_listen=endpoint,
                log_listen=f"{LOOPBACK}:0",
                tls_certificate=(state / "certs" / "source.crt").read_bytes(),
                tls_key=(state / "certs" / "source.key").read_bytes(),
                **options,
            ),
            description,
            Multicast(),
        )
        stop: Any = _Stop()
        thread = threading.Thread(target=self._run, args=(gateway, stop))
        reporter = SourceReporter(connection, FEED, gateway.describe, gateway.verifier, None, 0.1, gateway.on_answer)
        gateway.report_with(reporter.hurry)
        self._reporters[gateway] = reporter
        with ExitStack() as running:
            thread.start()
            running.callback(thread.join)
            running.callback(stop.set)
            reporter.start()
            running.callback(reporter.stop)
            if is_awaited:
                holder_of(gateway)
            yield gateway

    def _run(self, gateway: ContributionGateway, stop: Any) -> None:
        try:
            gateway.run(stop)
        except BaseException as failed:  # noqa: BLE001  # of any kind; `gateway_site` raises it
            self.failures.append(failed)


@contextmanager
def gateway_site(folder: Path, *, pair: bool = False, settings: str = "") -> Iterator[GatewaySite]:
    """A site with free ports.

    Args:
        pair: the feed has two contribution gateways.
        settings: more lines of the feed's table.
    """
    rpc, other = free_ports(socket.SOCK_STREAM, 2)
    group, output, copies = free_ports(socket.SOCK_DGRAM, 3)
    text = CLUSTER.format(formats=FORMATS, rpc=rpc, group=group, output=output, copies=copies)
    if pair:
        both = f'contributions = ["{LOOPBACK}:{rpc}", "{LOOPBACK}:{other}"]'
        text = text.replace(f'contributions = "{LOOPBACK}:{rpc}"', both)
    text = text.replace("[[feed.table]]", f"{settings}\n[[feed.table]]")
    with running_server(folder / "admin", cluster_text=text, policy_text=POLICY) as server:
        site = GatewaySite(server, folder / "contributions")
        yield site
        for failure in site.failures:
            raise failure


def holder_of(gateway: ContributionGateway) -> Holder:
    """The gateway's term, once it has one and is open."""
    give_up_at_s = time.monotonic() + PATIENCE_S
    while gateway.holder is None or not gateway.holder.is_open:
        assert time.monotonic() < give_up_at_s, f"the gateway is {gateway.part.state}: {gateway.part.reason}"
        time.sleep(0.01)
    return gateway.holder


def sent_messages(gateway: ContributionGateway) -> list[tuple[int, int]]:
    """(source_seq, sequence of the trade) of everything that was sent, as an adapter gets it that fills a gap."""
    holder = holder_of(gateway)
    wanted = RangeSet([(1, holder.index.next_source_seqs[1])])
    datagrams = holder.replay._of_session(0, 1, wanted)
    return [each for datagram in datagrams for each in messages_in(datagram)]
