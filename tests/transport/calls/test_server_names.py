"""Each server has a name of its own, and a certificate that does not carry it is refused before it is used."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.transport.calls.server_names import ADMIN_SERVER, adapter_server, source_gateway

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)  # as the settings allow


@given(st.tuples(NAMES, NAMES), st.tuples(NAMES, NAMES))
def test_different_servers_have_different_names(one: tuple[str, str], other: tuple[str, str]) -> None:
    names = {ADMIN_SERVER, *(adapter_server(*each).lower() for each in (one, other))}
    names |= {source_gateway(feed).lower() for feed in (one[0], other[0])}
    assert len(names) == 1 + len({one, other}) + len({one[0], other[0]})


@given(NAMES, NAMES)
def test_every_name_is_a_dns_name(feed: str, adapter: str) -> None:
    name = adapter_server(feed, adapter)
    assert len(name) <= 253
    assert all(0 < len(label) <= 63 and label.strip("-") == label for label in name.split("."))


def test_names_that_differ_in_case_only_are_different_servers() -> None:
    assert adapter_server("bonds", "A").lower() != adapter_server("bonds", "a").lower()
