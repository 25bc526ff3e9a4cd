"""A subscription to messages whose fields have wanted values."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from tandemfeed.client_lib import load_messages
from tandemfeed.client_lib.items import Batch
from tandemfeed.client_lib.messages.decoding import Decoder
from tandemfeed.client_lib.stream.filters.field_filter import FieldFilter
from tests.client_lib.messages.test_message_attributes import AT_NS, XML, batch_of, trade
from tests.client_lib.toy_cluster import TOPIC, ToyCluster, collect, heartbeat, packet

TRADES = [
    trade(),
    trade(symbol="IBM", price=Decimal("-1.5"), size=None, side="Sell short"),
    trade(symbol="XELA", price=Decimal("38.5"), size=7, eventAt=AT_NS + 1_000),
]
BOOK = load_messages(XML).Book(symbol="XEL", levels=[], note="")


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"symbol": "XEL"}, [0, 3]),
        ({"symbol": ["XEL", "IBM"]}, [0, 1, 3]),
        ({"symbol": {"XEL", "IBM"}, "size": 100}, [0]),
        ({"side": "Sell short"}, [1]),
        ({"price": Decimal("38.49")}, [0]),
        ({"price": (Decimal("0"), None)}, [0, 2]),
        ({"price": (None, Decimal("38.4999999999"))}, [0, 1]),
        ({"size": (1, None)}, [0, 2]),
        ({"eventAt": np.datetime64(AT_NS, "ns")}, [0, 1]),
        ({"event_at": (AT_NS + 1, None)}, [2]),
        ({"event_at": (None, datetime(2026, 11, 22, 14, 30, tzinfo=UTC))}, []),
    ],
)
def test_just_the_messages_with_wanted_values_are_delivered(where: Any, expected: list[int]) -> None:
    chosen = FieldFilter(Decoder(XML), where)
    batch = chosen.select(batch_of([*map(bytes, TRADES), bytes(BOOK)]))
    assert batch.message_seqs.tolist() == [21 + place for place in expected]
    assert [bytes(each) for each in batch.messages()] == [bytes([*TRADES, BOOK][place]) for place in expected]
    assert (chosen.filtered_counts.total(), batch.end_message_seq) == (4 - len(expected), 25)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"isin": "XEL"}, "no message has the field isin"),
        ({"price": 1, "note": "x"}, "no message has the field note"),
        ({"symbol": "NINELONG!"}, "cannot be a value of Trade: it is longer than 8"),
        ({"symbol": ("A", "B")}, "a range needs numbers or times"),
        ({"price": Decimal("0.0000000001")}, "it has more than 9 decimal places"),
        ({"side": "Hold"}, "'Hold', which cannot be a value of Trade"),
        ({"size": "many"}, "'many', which cannot be a value of Trade"),
    ],
)
def test_what_cannot_be_a_value_is_refused(where: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        FieldFilter(Decoder(XML), where)


def test_a_subscription_filters_by_fields_and_its_position_moves_on(cluster: ToyCluster) -> None:
    for adapter in cluster.adapters:
        adapter.lose(packet(1, 1, 5), packet(6, 6, 5))

    def has_all(items: list[Any]) -> bool:
        cluster.adapters[0].send(heartbeat(11))
        return any(each.end_message_seq == 11 for each in _batches(items))

    with cluster.connect() as feed:
        items = collect(feed.subscribe(TOPIC, start="first", where={"number": (1_000_003, 1_000_004)}), has_all)
    assert [message.number for each in _batches(items) for message in each.messages()] == [1_000_003, 1_000_004]


def _batches(items: list[Any]) -> list[Batch]:
    return [each for each in items if isinstance(each, Batch)]
