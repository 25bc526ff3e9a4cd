"""A subscriber with a valid login that opens as many calls of one method as it can, in a process of its own.

Usage: hostile_client.py ADMIN ENDPOINT SERVER_NAME CA_FILE IDENTITY SECRET_FILE CALL

A call that ends is made again. It prints a line when all its calls have been made once, and ends when its standard
input does. Then it prints how often each status ended one of its calls.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from tandemfeed.transport.calls.channels import BearerFor
from tandemfeed.transport.calls.login import login
from tests.access.calls import CALLS, STUBS

CONNECTIONS = 4
OPEN_OF_ONE = 128  # what a server allows each connection


async def flood(endpoint: str, server_name: str, ca_pem: bytes, bearer: BearerFor, name: str) -> Counter[str]:
    """Keep calls open on every connection; returns how they ended."""
    ended: Counter[str] = Counter()
    credentials = grpc.ssl_channel_credentials(ca_pem)
    options = [("grpc.ssl_target_name_override", server_name), ("grpc.use_local_subchannel_pool", 1)]
    channels = [aio.secure_channel(endpoint, credentials, options=options) for _ in range(CONNECTIONS)]
    service, _, method_name = name.partition("/")
    made = 0

    async def again_and_again(channel: aio.Channel) -> None:
        nonlocal made
        method = getattr(STUBS[service](channel), method_name)  # type: ignore[arg-type]  # generated code serves both
        while True:
            metadata = (("authorization", f"Bearer {bearer(server_name)}"),)
            made += 1
            ended[(await code_of(method, CALLS[name].request, metadata)).name] += 1

    tasks = [asyncio.create_task(again_and_again(channel)) for _ in range(OPEN_OF_ONE) for channel in channels]
    while made < len(tasks):
        await asyncio.sleep(0)
    say("open")
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    return ended


async def code_of(method: Any, request: Any, metadata: Any) -> grpc.StatusCode:
    """Make a call; its status when it has ended. A call of streams stays open as long as the server lets it."""
    if isinstance(method, aio.StreamStreamMultiCallable):
        call = method(silent(request), metadata=metadata)
    else:
        call = method(request, metadata=metadata)
    try:
        if isinstance(method, (aio.UnaryUnaryMultiCallable, aio.StreamUnaryMultiCallable)):
            await call
        else:
            async for _ in call:
                pass
    except aio.AioRpcError:
        pass
    code: grpc.StatusCode = await call.code()
    return code


async def silent(request: Any) -> AsyncIterator[Any]:
    """One request, and nothing more."""
    yield request
    await asyncio.Event().wait()


def main() -> None:
    """Flood until the standard input ends."""
    admin, endpoint, server_name, ca_file, identity, secret_file, name = sys.argv[1:]
    ca_pem = Path(ca_file).read_bytes()
    session = login(admin, ca_pem, identity, Path(secret_file).read_text().strip())
    loop = asyncio.new_event_loop()
    say(json.dumps(loop.run_until_complete(flood(endpoint, server_name, ca_pem, session.bearer, name))))
    os._exit(0)  # its calls are still open


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
