"""Settings of a small cluster, for tests that run a real admin server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import grpc

from tandemfeed.admin_server.server import SUBSCRIBER_COUNT_MAX, AdminServer
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.login import login
from tandemfeed.transport.calls.server_names import ADMIN_SERVER

EXAMPLES = Path(__file__).resolve().parents[2] / "deploy" / "examples" / "ticks"

SOURCE_REPLAY = "127.0.0.1:7411"  # the address of the source's replay service
CLUSTER = f"""
[[feed]]
feed_id = 1
name = "equities"
session = 20261121
message_model = "message-model.xml"
source_replay_endpoint = "{SOURCE_REPLAY}"
lease_ttl_ms = 300
source_lines = "open"
[[feed.channel]]
channel_id = 1
topic = "equities.ticks"
source_stream_ids = [1, 2]
[[feed.source_stream]]
source_stream_id = 1
name = "A-M"
group = "239.192.1.1:5001"
[[feed.source_stream]]
source_stream_id = 2
name = "N-Z"
group = "239.192.1.2:5002"
[[feed.adapter]]
adapter_id = 1
name = "a"
identity = "adapter-a"
groups = {{ 1 = "239.192.2.1:5011" }}
[[feed.adapter]]
adapter_id = 2
name = "b"
identity = "adapter-b"
groups = {{ 1 = "239.192.2.2:5012" }}
"""

# Long terms, so that a busy machine does not look like a dead adapter.
PATIENT = CLUSTER.replace("lease_ttl_ms = 300", "lease_ttl_ms = 2000\nsync_interval_ms = 200")

THIRD_ADAPTER = """
[[feed.adapter]]
adapter_id = 3
name = "c"
identity = "adapter-c"
groups = { 1 = "239.192.2.3:5013" }
"""

POLICY = """
[identity.adapter-a]
roles = ["adapter"]
[identity.adapter-b]
roles = ["adapter"]
[identity.adapter-c]
roles = ["adapter"]
[identity.source]
roles = ["source"]
[identity.reader]
roles = ["client"]
subscribe = ["equities.#"]
[identity.stranger]
roles = ["client"]
subscribe = ["futures.*"]
[identity.operator]
roles = ["admin"]
"""


def write_settings(folder: Path, cluster: str = CLUSTER, policy: str = POLICY) -> tuple[Path, Path]:
    """Write both files; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "message-model.xml").write_bytes((EXAMPLES / "message-model.xml").read_bytes())
    (folder / "cluster.toml").write_text(cluster)
    (folder / "policy.toml").write_text(policy)
    return folder / "cluster.toml", folder / "policy.toml"


class Folder(Protocol):
    """The folder in which a server keeps its state."""

    path: Path


class Server(Protocol):
    """A server in this process or in a separate one."""

    endpoint: str

    @property
    def folder(self) -> Folder:
        """Its private folder."""
        ...


@contextmanager
def running_server(
    folder: Path,
    subscriber_count_max: int = SUBSCRIBER_COUNT_MAX,
    cluster_text: str = CLUSTER,
    policy_text: str = POLICY,
    listen: str = "127.0.0.1:0",
    **options: Any,
) -> Iterator[AdminServer]:
    """A server on a free port of the loopback interface, unless the test chooses the address.

    Args:
        options: others of `AdminServer`.
    """
    cluster, policy = write_settings(folder, cluster_text, policy_text)
    server = AdminServer(cluster, policy, folder / "state", listen, subscriber_count_max, **options)
    try:
        yield server
    finally:
        server.stop()


def ca_of(server: Server) -> bytes:
    """The authority that issued the server's certificate."""
    return (server.folder.path / "ca.pem").read_bytes()


def secret_of(server: Server, identity: str) -> str:
    """The development secret created at the first start."""
    return (server.folder.path / "secrets" / f"{identity}.secret").read_text().strip()


def channel_as(server: Server, identity: str) -> grpc.Channel:
    """A channel authenticated as an identity of the policy."""
    session = login(server.endpoint, ca_of(server), identity, secret_of(server, identity))
    return open_channel(server.endpoint, ca_of(server), ADMIN_SERVER, session.bearer)
