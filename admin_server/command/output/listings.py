"""The tables of `adapters`, `streams`, `history`, `clients`, `grants` and `keys`. Decides nothing."""

from __future__ import annotations

import time

from rich.console import Console

from tandemfeed.admin_server.alerts import Thresholds, state_of
from tandemfeed.admin_server.command.output.tables import titled_table
from tandemfeed.admin_server.times import clock, duration
from tandemfeed.v1 import admin_pb2

GIB = 1 << 30


def print_adapters(reply: admin_pb2.GetStatusReply, console: Console | None = None) -> None:
    """Print a table of adapters for each feed, and their addresses."""
    console = console or Console()
    for feed in reply.feeds:
        table = titled_table(
            f"feed {feed.feed.name}", ("adapter", "state", "process", "cpu", "memory", "disk free", "errors", "score")
        )
        for row in feed.adapters:
            health, disk = row.state.health, row.state.output_journal.disk_free_bytes
            known = row.HasField("state")
            table.add_row(
                row.adapter.name,
                state_of(row, Thresholds()),
                f"{row.process_id}\n{row.host}" if row.process_id else "",
                f"{health.cpu_ratio:.0%}" if known else "",
                f"{health.memory_available_ratio:.0%}" if known else "",
                f"{disk / GIB:.1f} GiB" if disk else "",
                f"{health.error_count:,}" if known else "",
                f"{health.score:.2f}" if known else "",
            )
        console.print(table)
        for row in feed.adapters:
            if row.adapter.rpc_endpoint:
                text = f"{row.adapter.name}: calls at {row.adapter.rpc_endpoint}, incarnation {row.adapter.incarnation}"
                console.print(text, markup=False, highlight=False)


def print_streams(
    status: admin_pb2.GetStatusReply, keys: admin_pb2.ListKeysReply, console: Console | None = None
) -> None:
    """Print a table for each feed: each channel with each adapter's group and position."""
    console = console or Console()
    for feed in status.feeds:
        table = titled_table(f"feed {feed.feed.name}", ("channel", "adapter", "group", "epoch", "next seq", "keys"))
        for channel in feed.feed.channels:
            ids = [key for key in keys.keys if (key.feed, key.channel_id) == (feed.feed.name, channel.channel_id)]
            for place, row in enumerate(feed.adapters):
                position = next((c.position for c in row.state.channels if c.channel_id == channel.channel_id), None)
                table.add_row(
                    "" if place else f"{channel.channel_id} {channel.topic}",
                    row.adapter.name,
                    row.adapter.groups.get(channel.channel_id, ""),
                    "" if position is None else str(position.epoch),
                    "" if position is None else str(position.next_message_seq),
                    "" if place else "\n".join(str(key.key_id) for key in ids),
                )
        console.print(table)


def print_history(reply: admin_pb2.GetHistoryReply, console: Console | None = None) -> None:
    """Print a line for each event."""
    console = console or Console()
    for event in reply.events:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.at_unix_ns // 1_000_000_000))
        parts = [f"{at}  {event.event}", event.adapter, f"epoch {event.epoch}" if event.epoch else "", event.reason]
        parts.append(f"by {event.by}" if event.by else "")
        console.print(", ".join(part for part in parts if part), markup=False, highlight=False)
    if not reply.events:
        console.print("nothing has happened to this feed's roles")


def print_clients(clients: list[admin_pb2.ClientStatus], console: Console | None = None) -> None:
    """Print a table of connected clients."""
    console = console or Console()
    table = titled_table("", ("id", "identity", "feed", "since", "from", "channels"))
    for client in clients:
        since = clock(client.since_unix_ns)
        table.add_row(
            str(client.client_id), client.identity, client.feed, since, _address(client.peer), "\n".join(client.topics)
        )
    console.print(table)


def print_grants(reply: admin_pb2.ListGrantsReply, console: Console | None = None) -> None:
    """Print a table of what identities may do now."""
    console = console or Console()
    table = titled_table("", ("identity", "roles", "feed", "subscribe to", "contribute to", "feed itself", "streams"))
    for each in reply.grants:
        table.add_row(
            each.identity,
            "\n".join(each.roles),
            each.feed,
            "\n".join(each.topics),
            "\n".join(each.contribute_topics),
            "administer" if each.may_administer else "observe" if each.may_observe else "",
            str(each.client_count) if each.client_count else "",
        )
    console.print(table)


def print_keys(keys: list[admin_pb2.KeyStatus], console: Console | None = None) -> None:
    """Print a table of keys: never the keys themselves."""
    console = console or Console()
    table = titled_table("", ("feed", "channel", "key id", "in use for", "rotates in", "expires in"))
    now = time.time_ns()
    for key in keys:
        begins = key.not_before_unix_ns
        used = "from its start" if not begins else duration(now - begins) if begins <= now else f"at {clock(begins)}"
        table.add_row(
            key.feed,
            f"{key.channel_id} {key.topic}" if key.channel_id else "source",
            str(key.key_id),
            used,
            duration(max(key.rotation_unix_ns - now, 0)) if key.rotation_unix_ns else "replaced",
            duration(max(key.expires_unix_ns - now, 0)),
        )
    console.print(table)


def print_token_keys(keys: list[admin_pb2.TokenKeyStatus], console: Console | None = None) -> None:
    """Print a table of the keys that sign tokens."""
    console = console or Console()
    table = titled_table("keys that sign tokens", ("key id", "signs", "rotates in", "accepted for"))
    now = time.time_ns()
    for key in keys:
        begins = key.signs_from_unix_ns
        table.add_row(
            key.key_id,
            f"for {duration(now - begins)}" if begins <= now else f"at {clock(begins)}",
            duration(max(key.rotation_unix_ns - now, 0)) if key.rotation_unix_ns else "replaced",
            duration(max(key.accepted_until_unix_ns - now, 0)) if key.accepted_until_unix_ns else "",
        )
    console.print(table)


def _address(peer: str) -> str:
    """A connection's address without gRPC's scheme."""
    return peer.removeprefix("ipv4:").removeprefix("ipv6:").replace("%5B", "[").replace("%5D", "]")
