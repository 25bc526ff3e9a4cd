"""tandemfeed: an active/backup feed-adapter cluster for market data, and the journal beneath it.

::

    import tandemfeed

    with tandemfeed.connect(profile="reader") as feed:
        for tick in feed.subscribe("equities.us.#"):
            print(tick.symbol, tick.price)

`connect` opens a subscriber's connection (`tandemfeed.client_lib`); `journal` is the storage engine. Both are imported
when they are first used, so that a journal needs no gRPC and a client needs no Spark. In a checkout, the packages here
are links to the folders at the top level.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tandemfeed import journal
    from tandemfeed.client_lib import connect, load_messages

__all__ = ["__version__", "connect", "journal", "load_messages"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in ("connect", "load_messages"):
        return getattr(importlib.import_module("tandemfeed.client_lib"), name)
    if name == "journal":
        return importlib.import_module("tandemfeed.journal")
    raise AttributeError(f"module 'tandemfeed' has no attribute {name!r}")
