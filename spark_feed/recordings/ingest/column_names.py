"""Maps the columns of a user's file to the fields of a recording: guessed from names, overridden by options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tandemfeed.spark_feed.recordings.recording import RecordingError

# In order of preference; compared in lower case.
KNOWN_NAMES: dict[str, tuple[str, ...]] = {
    "event_at_ns": ("event_at_ns", "ts_event", "event_time", "timestamp", "datetime", "date_time", "time", "ts", "t"),
    "symbol": ("symbol", "ticker", "raw_symbol", "instrument", "sym"),
    "price": ("price", "trade_price", "px", "last", "last_price", "p"),
    "size": ("size", "quantity", "qty", "volume", "trade_size", "amount", "vol", "q"),
    "side": ("side", "aggressor_side", "aggressor", "taker_side"),
    "buyer_maker": ("buyer_maker", "is_buyer_maker", "buyer_is_maker"),
    "flags": ("flags",),
    "bid_price": ("bid_price", "bid", "bid_px", "bidprice", "best_bid", "bid_px_00"),
    "ask_price": ("ask_price", "ask", "ask_px", "askprice", "best_ask", "offer", "ask_px_00"),
    "bid_size": ("bid_size", "bid_qty", "bidsize", "bid_volume", "bid_sz", "bid_sz_00"),
    "ask_size": ("ask_size", "ask_qty", "asksize", "ask_volume", "ask_sz", "ask_sz_00", "offer_size"),
    "received_at_ns": ("received_at_ns", "ts_recv", "received_time"),
    "order_id": ("order_id", "orderid"),
    "sequence": ("sequence", "seq"),
    "received_delta_ns": ("received_delta_ns", "ts_in_delta"),
    "action": ("action",),
    "venue_channel": ("venue_channel", "channel_id"),
}
FIELDS_OF_KIND: dict[str, tuple[str, ...]] = {
    "order": ("event_at_ns", "order_id", "action", "price", "size"),
    "trade": ("event_at_ns", "price", "size"),
    "quote": ("event_at_ns", "bid_price", "ask_price"),
}


def map_columns(
    file: str, present: Sequence[str], chosen: Mapping[str, str], kind: str | None
) -> tuple[str, dict[str, str]]:
    """The message kind of the file's rows, and the column of each field found.

    Args:
        file: name to use in errors.
        present: the file's columns.
        chosen: field -> column, from options.
        kind: from options; None: guessed.

    Raises:
        RecordingError: if a required field has no column, or an option names a field or column that does not exist.
    """
    for field, column in chosen.items():
        if field not in KNOWN_NAMES:
            known = ", ".join(KNOWN_NAMES)
            raise RecordingError(f"--column {field}={column}: unknown field {field!r}; the fields are {known}")
        if column not in present:
            raise RecordingError(f"{file}: no column {column!r} for {field}; the columns are {', '.join(present)}")
    by_lower_name = {name.lower().strip(): name for name in reversed(present)}
    mapping = {
        field: by_lower_name[name]
        for field, names in KNOWN_NAMES.items()
        for name in reversed(names)
        if name in by_lower_name
    }
    mapping.update(chosen)
    kinds = [kind] if kind else list(FIELDS_OF_KIND)
    for candidate in kinds:
        if all(field in mapping for field in FIELDS_OF_KIND[candidate]):
            return candidate, mapping
    best = min(kinds, key=lambda name: sum(field not in mapping for field in FIELDS_OF_KIND[name]))
    missing = [field for field in FIELDS_OF_KIND[best] if field not in mapping]
    raise RecordingError(
        f"{file}: no column found for {', '.join(missing)} of a {best} (the columns are {', '.join(present)}): name "
        f"the column with --column {missing[0]}=NAME, or give --kind trade, quote or order"
    )
