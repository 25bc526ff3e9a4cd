"""tandemfeed: an active/backup feed-adapter cluster for market data, and the journal beneath it.

::

    import tandemfeed

    with tandemfeed.connect(admin="127.0.0.1:7400", ca="state/ca.pem", identity="reader", secret=secret) as client:
        for item in client.subscribe("ticks"):
            print(item)

`connect` opens a subscriber's connection (`tandemfeed.client_lib`); `journal` is the storage engine. Both are imported
when they are first used, so that a journal needs no gRPC and a client needs no Spark. In a checkout, the packages here
are links to the folders at the top level.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tandemfeed import journal
    from tandemfeed.client_lib import connect

__all__ = ["__version__", "connect", "journal"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "connect":
        return importlib.import_module("tandemfeed.client_lib").connect
    if name == "journal":
        return importlib.import_module("tandemfeed.journal")
    raise AttributeError(f"module 'tandemfeed' has no attribute {name!r}")
