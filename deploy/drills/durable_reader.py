"""The application of the drill `kill-client`: it handles each message once, however often it is killed.

To handle is to append the message's identity to a file. The file's length is the note of the durable cursor, and is
stored together with the position, so what was written after that is removed at the next start, and delivered again.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tandemfeed.client_lib import Batch
from tandemfeed.client_lib.commands.running import client_of
from tandemfeed.deploy.drills.application import CONTENT_DTYPE, identified
from tandemfeed.transport.process_shell import (
    StopSignal,
    add_connection_arguments,
    announce_ready,
    configure_logging,
    connection_from,
)
from tandemfeed.transport.scheduling import request_short_slices

BATCHES_PER_STORE = 50  # a kill seldom meets a position that was just stored
POLL_S = 0.2


def main(argv: Sequence[str] | None = None) -> int:
    """Append the identity of each message of a feed to a file, exactly once, until SIGTERM; continue after SIGKILL."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="tandemfeed durable-reader", description=main.__doc__)
    parser.add_argument("--feed", required=True, metavar="NAME", help="name of the feed")
    parser.add_argument("--cursor", required=True, type=Path, metavar="FILE", help="where the position is kept")
    parser.add_argument("--output", required=True, type=Path, metavar="FILE", help="what was handled")
    add_connection_arguments(parser)
    arguments = parser.parse_args(argv)
    request_short_slices()
    configure_logging("durable-reader", arguments.log_level)
    connection, stop = connection_from(parser, arguments), StopSignal()
    with (
        arguments.output.open("ab", buffering=0) as file,
        client_of(connection) as client,
        client.subscribe(feed=arguments.feed, start="live", cursor=arguments.cursor) as subscription,
    ):
        assert subscription.cursor is not None
        file.truncate(subscription.cursor.note or 0)
        announce_ready(feed=arguments.feed)
        count = 0
        while not stop.is_set:
            for batch in subscription.poll(POLL_S):
                if not isinstance(batch, Batch):
                    continue
                for _, rows in batch.arrays():
                    file.write(identified(batch, rows).tobytes())
                subscription.cursor.note = file.seek(0, os.SEEK_END)
                count += 1
            if count >= BATCHES_PER_STORE:
                count = 0
                subscription.store_cursor()
    return 0


def handled(path: Path) -> NDArray[np.void]:
    """The identities of what was handled, in order."""
    return np.fromfile(path, CONTENT_DTYPE)
