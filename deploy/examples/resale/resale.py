"""Resale: subscribes to trades, adds value, and contributes the result to another feed.

The n-th message contributed belongs to the n-th trade. So after a crash the program reads the trades again from the
first, to have the same averages, and contributes from the message on that the feed has not accepted yet: each once.

    python resale.py [COUNT]     end after so many trades
"""

from __future__ import annotations

import sys
from collections import defaultdict
from decimal import Decimal
from itertools import islice
from pathlib import Path

import tandemfeed as tf


def main(count: int | None) -> None:
    """Follow the trades of the session."""
    secret = Path("state/secrets/reseller.secret").read_text().strip()
    values, volumes = defaultdict[str, Decimal](Decimal), defaultdict[str, Decimal](Decimal)
    with tf.connect("127.0.0.1:7500", ca="state/ca.pem", identity="reseller", secret=secret) as feed:
        averages = feed.contribute("demo.averages", producer="vwap")
        statistic = averages.messages.Statistic
        trades = feed.subscribe("demo.trades", start="first")
        for number, trade in enumerate(islice(trades, count), 1):
            values[trade.symbol] += trade.price * trade.size
            volumes[trade.symbol] += trade.size
            if number >= averages.next_number:
                price = round(values[trade.symbol] / volumes[trade.symbol], 9)
                made = statistic(symbol=trade.symbol, eventAt=trade.event_at, topic="vwap", price=price)
                print(averages.send(made), trade.symbol, price)  # durable now


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else None)
