"""The subscribing client: authenticates, joins every adapter's stream, merges them, fills gaps and delivers messages.

::

    with tandemfeed.connect("admin.example:7443", profile="reader") as feed:
        for tick in feed.subscribe("equities.us.#", cursor="my-model"):
            print(tick.symbol, tick.price)

It must never deliver a message twice or out of its source stream's order, or skip one without reporting a gap.
"""

from tandemfeed.client_lib.client import Client, Options, connect
from tandemfeed.client_lib.contribution.contribution import (
    Contribution,
    ContributionId,
    ContributionInDoubt,
    ContributionRefused,
    ContributionSuperseded,
)
from tandemfeed.client_lib.errors import (
    AdminUnavailable,
    AuthenticationRefused,
    AuthorizationRefused,
    ClientError,
    FeedUnknown,
    ForkedProcess,
    HistoryUnavailable,
    LimitReached,
    ThreadFailed,
    TooSlow,
)
from tandemfeed.client_lib.items import (
    Batch,
    ChannelsChanged,
    Event,
    Filled,
    HistoryShortened,
    Item,
    ModelChanged,
    Revoked,
    SnapshotTaken,
    SourceSpan,
)
from tandemfeed.client_lib.losses.loss import Loss, LossCause, Outcome
from tandemfeed.client_lib.losses.loss_report import read_losses
from tandemfeed.client_lib.messages.message import Message, MessageClasses, Origin, load_messages
from tandemfeed.client_lib.messages.sbe_reading import SbeReadError, Unlisted
from tandemfeed.client_lib.messages.sbe_writing import SbeWriteError
from tandemfeed.client_lib.reading.cursor import Cursor, CursorUnusable
from tandemfeed.client_lib.reading.lag import Disconnected, Dropped, Lag, LagEnded, Lagging
from tandemfeed.client_lib.reading.storage import NotStored, StoredAgain
from tandemfeed.client_lib.stream.sockets.transport_choice import UnicastChosen
from tandemfeed.client_lib.stream.statistics import ChannelStatistics, SubscriptionStatistics
from tandemfeed.client_lib.stream.subscription import Subscription
from tandemfeed.client_lib.stream.trust.stream_trust import Distrusted, DistrustReason
from tandemfeed.client_lib.tables import Batches
from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.effects import (
    CatchingUp,
    CaughtUp,
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
    SessionChanged,
    SourceGap,
    Stale,
    Takeover,
)

__all__ = [
    "AdminUnavailable",
    "AuthenticationRefused",
    "AuthorizationRefused",
    "Batch",
    "Batches",
    "CatchingUp",
    "CaughtUp",
    "ChannelStatistics",
    "ChannelsChanged",
    "Client",
    "ClientError",
    "ConfirmationPaused",
    "ConfirmationResumed",
    "Contribution",
    "ContributionId",
    "ContributionInDoubt",
    "ContributionRefused",
    "ContributionSuperseded",
    "Cursor",
    "CursorUnusable",
    "Disconnected",
    "DistrustReason",
    "Distrusted",
    "Diverged",
    "Dropped",
    "Ended",
    "Event",
    "FeedUnknown",
    "Filled",
    "ForkedProcess",
    "Gap",
    "GapReason",
    "HistoryShortened",
    "HistoryUnavailable",
    "Item",
    "Lag",
    "LagEnded",
    "Lagging",
    "LimitReached",
    "Live",
    "Loss",
    "LossCause",
    "MergerConfig",
    "Message",
    "MessageClasses",
    "ModelChanged",
    "NotStored",
    "Numbered",
    "Options",
    "Origin",
    "Outcome",
    "Provisional",
    "ProvisionalGap",
    "Revoked",
    "SbeReadError",
    "SbeWriteError",
    "SessionChanged",
    "SnapshotTaken",
    "SourceGap",
    "SourceSpan",
    "Stale",
    "StoredAgain",
    "Subscription",
    "SubscriptionStatistics",
    "Takeover",
    "ThreadFailed",
    "TooSlow",
    "UnicastChosen",
    "Unlisted",
    "connect",
    "load_messages",
    "read_losses",
]
