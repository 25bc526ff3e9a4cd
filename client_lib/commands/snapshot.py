"""Print the last message of each type and symbol, and end."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tandemfeed.client_lib.commands.outputs import add_output_arguments, open_output, require_kind
from tandemfeed.client_lib.commands.running import Interruption, client_of, run_command
from tandemfeed.client_lib.items import SnapshotTaken
from tandemfeed.transport.process_shell import add_connection_arguments, configure_logging, connection_from


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns 0, or 2 if the cluster refuses access or does not answer."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="tandemfeed snapshot", description=__doc__)
    parser.add_argument("--feed", default="", metavar="NAME", help="the feed; needed if several have the topics")
    parser.add_argument("--topic", action="append", default=[], metavar="TOPIC", help="of this topic (repeatable)")
    parser.add_argument(
        "--by", default="symbol", metavar="FIELD", help="the field that is the key (default %(default)s)"
    )
    add_output_arguments(parser, "table")
    add_connection_arguments(parser)
    arguments = parser.parse_args(argv)
    connection = connection_from(parser, arguments)
    configure_logging("snapshot", arguments.log_level)

    def work() -> int:
        with (
            Interruption() as interruption,
            client_of(connection) as client,
            open_output(arguments) as output,
        ):
            subscription = client.subscribe(
                arguments.topic, feed=arguments.feed, start="snapshot", conflate_by=arguments.by
            )
            interruption.set_target(subscription)
            require_kind(arguments, subscription.classes)
            missing = set(subscription.grant.topics_by_channel)
            while missing and not subscription.is_closed:
                for item in subscription.poll():
                    if isinstance(item, SnapshotTaken):
                        missing.discard(item.channel_id)
                    elif getattr(item, "channel_id", None) in missing:
                        output.write([item])
            return 0

    return run_command("snapshot", work)
