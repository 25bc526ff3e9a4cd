"""A client whose last subscription has ended subscribes again at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemfeed.client_lib import connect
from tandemfeed.client_lib.errors import AuthorizationRefused
from tests.admin_server.cluster_files import ca_of, running_server, secret_of


def test_a_subscription_can_follow_one_that_was_refused(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        secret = secret_of(server, "reader")
        with connect(admin=server.endpoint, ca=ca_of(server), identity="reader", secret=secret) as client:
            for _ in range(10):
                with pytest.raises(AuthorizationRefused):
                    client.subscribe(feed="nothing")
                client.subscribe(feed="equities", start="first").close()
