"""Commands about access: who is connected, who may do what, and the keys."""

from __future__ import annotations

import argparse
from typing import Any

from tandemfeed.admin_server.command.registry import CommandAdder
from tandemfeed.v1 import admin_pb2


def add_commands(adder: CommandAdder) -> None:
    """Add `clients`, `grants` and `keys`."""
    clients = adder.group("clients", "list the clients that are connected, or end their streams")
    listed = clients.asking(
        "list",
        "list the clients that are connected: since when, from where, and to which channels",
        lambda arguments: admin_pb2.ListClientsRequest(feed=arguments.feed),
        _print_clients,
    )
    listed.add_argument("--feed", default="", metavar="NAME", help="list only clients of this feed")
    kick = clients.asking(
        "kick",
        "end the streams of a client; it may connect again, unless the policy no longer grants it",
        _kick_request,
        _print_kicked,
        hurts=lambda asked: f"end the streams of {asked.client}",
    )
    kick.add_argument("client", metavar="IDENTITY|ID", help="an identity, or the id of one stream")
    kick.add_argument("--reason", required=True, metavar="TEXT", help="sent to the client, and recorded")
    grants = adder.asking(
        "grants",
        "show what identities may do now, and which of them are connected",
        lambda arguments: admin_pb2.ListGrantsRequest(identity=arguments.subject),
        _print_grants,
    )
    grants.add_argument("subject", nargs="?", default="", metavar="IDENTITY", help="show only this identity")
    keys = adder.group("keys", "list the keys' ids and ages, or replace keys")
    listed = keys.asking(
        "list",
        "list the ids of keys, for how long they are in use, and when they rotate",
        lambda arguments: admin_pb2.ListKeysRequest(feed=arguments.feed),
        _print_all_keys,
    )
    listed.add_argument("--feed", default="", metavar="NAME", help="list only keys of this feed")
    rotate = keys.asking(
        "rotate",
        "replace the keys of a channel, or of all channels and the source of a feed, within seconds",
        lambda arguments: admin_pb2.RotateKeysRequest(feed=arguments.feed, topic=arguments.topic),
        _print_keys,
        hurts=lambda asked: f"replace the keys of {asked.topic or 'every channel'} in feed {asked.feed}",
    )
    rotate.add_argument("feed", metavar="FEED", help="name of the feed")
    rotate.add_argument("topic", nargs="?", default="", metavar="CHANNEL", help="topic of one channel")
    tokens = keys.asking(
        "rotate-tokens",
        "sign tokens with a new key; those that the former key signed are accepted until they expire",
        lambda asked: admin_pb2.RotateTokenKeysRequest(drop_former=asked.now, reason=asked.reason),
        _print_token_keys,
        hurts=_what_rotation_does,
    )
    tokens.add_argument(
        "--now",
        action="store_true",
        help="accept nothing that the former keys signed, because one was stolen: every call ends, every process "
        "logs in again, and the keys of all channels and sources are replaced",
    )
    tokens.add_argument("--reason", default="", metavar="TEXT", help="recorded; required with --now")


def _kick_request(arguments: argparse.Namespace) -> admin_pb2.KickClientRequest:
    if arguments.client.isdecimal():
        return admin_pb2.KickClientRequest(client_id=int(arguments.client), reason=arguments.reason)
    return admin_pb2.KickClientRequest(identity=arguments.client, reason=arguments.reason)


def _print_kicked(_arguments: argparse.Namespace, reply: admin_pb2.KickClientReply) -> None:
    for client in reply.kicked:
        print(f"ended stream {client.client_id} of {client.identity} in feed {client.feed}")


def _print_clients(_arguments: argparse.Namespace, reply: Any) -> None:
    from tandemfeed.admin_server.command.output.listings import print_clients

    print_clients(list(reply.clients))


def _print_grants(_arguments: argparse.Namespace, reply: Any) -> None:
    from tandemfeed.admin_server.command.output.listings import print_grants

    print_grants(reply)


def _print_keys(_arguments: argparse.Namespace, reply: Any) -> None:
    from tandemfeed.admin_server.command.output.listings import print_keys

    print_keys(list(reply.keys))


def _print_all_keys(_arguments: argparse.Namespace, reply: admin_pb2.ListKeysReply) -> None:
    from tandemfeed.admin_server.command.output.listings import print_keys, print_token_keys

    print_keys(list(reply.keys))
    if reply.token_keys:
        print_token_keys(list(reply.token_keys))


def _what_rotation_does(arguments: argparse.Namespace) -> str:
    if arguments.now:
        return "end every token and every call of the cluster, and replace the keys of every channel and source"
    return ""


def _print_token_keys(_arguments: argparse.Namespace, reply: admin_pb2.RotateTokenKeysReply) -> None:
    from tandemfeed.admin_server.command.output.listings import print_token_keys

    print_token_keys(list(reply.keys))
