"""An administrator limits what adapters spend on replays, at the real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.admin_server.adapter_by_hand import Adapter
from tests.admin_server.cluster_files import running_server
from tests.admin_server.identity.logins import audit_of, run


def limit_of(adapter: Adapter) -> int:
    """The next limit that the adapter is ordered to keep."""
    return adapter.await_order("replay_limited").replay_limited.bytes_per_s


def test_a_limit_reaches_adapters_outlives_them_and_the_server_and_is_seen_by_operators(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_server(tmp_path) as server:
        a, b = Adapter(server, "a"), Adapter(server, "b")
        assert limit_of(a) == limit_of(b) == 0
        assert run(server, "throttle", "equities", "a", "--replay-mb-per-s", "2.5") == 0
        assert capsys.readouterr().out == "feed equities: replays by a: at most 2.5 MB/s each\n"
        assert limit_of(a) == 2_500_000
        assert run(server, "throttle", "equities", "--replay-mb-per-s", "4") == 0
        assert limit_of(a) == limit_of(b) == 4_000_000
        assert run(server, "throttle", "equities", "b", "--off") == 0
        assert limit_of(b) == 0
        a.vanish()
        b.vanish()
    with running_server(tmp_path) as server:
        a, b = Adapter(server, "a", replace=True), Adapter(server, "b", replace=True)
        assert (limit_of(a), limit_of(b)) == (4_000_000, 0)
        capsys.readouterr()
        assert run(server, "status") == 0
        assert "a: replays limited to 4 MB/s" in capsys.readouterr().out
        assert run(server, "status", "--json") == 0
        (feed,) = json.loads(capsys.readouterr().out)["feeds"]
        assert [int(row["replay_bytes_per_s_max"]) for row in feed["adapters"]] == [4_000_000, 0]
        assert run(server, "history", "equities") == 0
        page = capsys.readouterr().out
        assert "replay limited, a, to 2.5 MB/s, by operator" in page
        assert "replay limited, b, not any more, by operator" in page
        rows = [(row["adapter"], row["reason"], row["by"]) for row in audit_of(server, "replay limited")]
        assert rows[0] == ("a", "to 2.5 MB/s", "operator")
        assert len(rows) == 4
        a.vanish()
        b.vanish()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["a"], "one of the arguments --replay-mb-per-s --off is required"),
        (["a", "--off", "--replay-mb-per-s", "1"], "not allowed with"),
        (["a", "--replay-mb-per-s", "0"], "it is '0'; it must be a number of MB/s"),
        (["a", "--replay-mb-per-s", "fast"], "it is 'fast'; it must be a number of MB/s"),
        (["a", "--replay-mb-per-s", "0.1"], "the limit is 0.1 MB/s; it must be between 0.5 and 1,000,000"),
        (["c", "--replay-mb-per-s", "1"], "feed 'equities' has no adapter 'c'"),
    ],
)
def test_a_bad_limit_is_refused(
    tmp_path: Path, words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_server(tmp_path) as server:
        assert run(server, "throttle", "equities", *words) == 2
        assert complaint in capsys.readouterr().err
        assert not audit_of(server, "replay limited")
