"""A user's program that subscribes and receives nothing but heartbeats; it prints its processor time as JSON.

It uses the public names alone, and takes the connection from the environment, so it runs with the library of any
checkout that PYTHONPATH names.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

WARM_UP_S = 2.0  # the streams are live, and what the start allocated is settled


def main() -> None:
    """Start, then idle."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--feed", required=True)
    parser.add_argument("--verify", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    interpreter_s = time.process_time()
    from tandemfeed.client_lib import connect  # measured

    imported_s = time.process_time()
    with connect() as feed:
        logged_in_s = time.process_time()
        with feed.subscribe(feed=options.feed, transport="multicast", verify=options.verify) as subscription:
            subscribed_s = time.process_time()
            until_s = time.monotonic() + WARM_UP_S
            while (left_s := until_s - time.monotonic()) > 0:
                subscription.poll(left_s)
            received, began_s, processor_s = subscription.statistics().datagrams, time.monotonic(), time.process_time()
            while (left_s := began_s + options.seconds - time.monotonic()) > 0:
                subscription.poll(left_s)
            took_s, processor_s = time.monotonic() - began_s, time.process_time() - processor_s
            received = subscription.statistics().datagrams - received
    found = {
        "imports_s": imported_s - interpreter_s,
        "login_s": logged_in_s - imported_s,
        "subscribe_s": subscribed_s - logged_in_s,
        "start_s": subscribed_s,
        "idle_share": processor_s / took_s,
        "datagrams_per_s": received / took_s,
    }
    sys.stdout.write(json.dumps({name: round(value, 4) for name, value in found.items()}) + "\n")


if __name__ == "__main__":
    main()
