"""The subscribing side: authenticate, join every adapter's stream, merge them, fill gaps, hand messages over.

::

    with client_lib.connect(admin="127.0.0.1:7400", ca="ca.pem", identity="demo-client", secret=…) as client:
        for item in client.subscribe("equities"):
            if isinstance(item, client_lib.Batch):
                for message in item.messages(): …

Must never pass on a message twice, out of a source stream's order, or pass over one without saying so.
"""

from client_lib.client import Client, connect
from client_lib.errors import AdminUnavailable, AuthenticationRefused, AuthorizationRefused, ClientError, FeedUnknown
from client_lib.items import Batch, Event, Filled, Item, Message, Revoked, SourceSpan
from client_lib.statistics import ChannelStatistics, SubscriptionStatistics
from client_lib.stream_trust import Distrusted, DistrustReason
from client_lib.subscription import Subscription
from feedcore.merge.config import MergerConfig
from feedcore.merge.effects import (
    ConfirmationPaused,
    ConfirmationResumed,
    Diverged,
    Ended,
    Gap,
    GapReason,
    Live,
    Numbered,
    Provisional,
    ProvisionalGap,
    SourceGap,
    Stale,
    Takeover,
)

__all__ = [
    "AdminUnavailable",
    "AuthenticationRefused",
    "AuthorizationRefused",
    "Batch",
    "ChannelStatistics",
    "Client",
    "ClientError",
    "ConfirmationPaused",
    "ConfirmationResumed",
    "DistrustReason",
    "Distrusted",
    "Diverged",
    "Ended",
    "Event",
    "FeedUnknown",
    "Filled",
    "Gap",
    "GapReason",
    "Item",
    "Live",
    "MergerConfig",
    "Message",
    "Numbered",
    "Provisional",
    "ProvisionalGap",
    "Revoked",
    "SourceGap",
    "SourceSpan",
    "Stale",
    "Subscription",
    "SubscriptionStatistics",
    "Takeover",
    "connect",
]
