"""A wrong argument of the client raises an error that names it and says what was expected, before anything is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tandemfeed
from tests.client_lib.toy_cluster import IDENTITY, SECRET, ToyCluster


@pytest.mark.parametrize("name", ["admin", "identity"])
def test_connect_expects_text(name: str) -> None:
    arguments: dict[str, Any] = {"admin": "127.0.0.1:7400", "ca": b"", "identity": "reader", "secret": "hunter2"}
    with pytest.raises(TypeError, match=f"{name} is .*; expected text"):
        tandemfeed.connect(**arguments | {name: None})


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"secret": "hunter2", "token_file": "token"},
        {"secret": "hunter2", "secret_file": "secret"},
        {"certificate_file": "reader.crt"},
        {"key_file": "key"},
    ],
)
def test_connect_expects_one_way_to_log_in(given: dict[str, str]) -> None:
    with pytest.raises(
        ValueError, match="give one of secret, secret_file, certificate_file with key_file, and token_file"
    ):
        tandemfeed.connect(admin="127.0.0.1:7400", ca=b"", identity="reader", **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("admin", ["127.0.0.1", "127.0.0.1:", ":7400", "127.0.0.1:7400,standby", "host:port"])
def test_connect_expects_addresses_with_a_port(admin: str) -> None:
    with pytest.raises(ValueError, match=r"is not HOST:PORT, such as 127\.0\.0\.1:7400"):
        tandemfeed.connect(admin=admin, ca=b"", identity="reader", secret="hunter2")


def test_a_secret_may_be_in_a_file(cluster: ToyCluster, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n")
    endpoint, ca = cluster.admin_rpc.endpoint, cluster.ca_pem
    with tandemfeed.connect(admin=endpoint, ca=ca, identity=IDENTITY, secret_file=path) as client:
        assert client.subscribe().grant.feed_name == "equities"


def test_a_secret_of_the_wrong_type_is_not_shown() -> None:
    with pytest.raises(TypeError, match="secret is of type bytes; expected text"):
        tandemfeed.connect(admin="127.0.0.1:7400", ca=b"", identity="reader", secret=b"hunter2")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("feed", "topics", "text"),
    [
        (None, (), "feed is None; expected text"),
        ("equities", 5, "topics is 5; expected one topic or several, as text"),
        ("equities", [None], "topics is .None.; expected one topic or several, as text"),
    ],
)
def test_subscribe_expects_a_feed_and_topics(cluster: ToyCluster, feed: Any, topics: Any, text: str) -> None:
    with (
        tandemfeed.connect(
            admin=cluster.admin_rpc.endpoint, ca=cluster.ca_pem, identity=IDENTITY, secret=SECRET
        ) as client,
        pytest.raises(TypeError, match=text),
    ):
        client.subscribe(topics, feed=feed)
