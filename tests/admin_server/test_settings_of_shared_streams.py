"""Source streams that several channels read: what the cluster file may say, and what others learn of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from tandemfeed.admin_server.command.output.status_page import print_feeds
from tandemfeed.admin_server.feed.descriptions import describe_feed
from tandemfeed.admin_server.policy.document import load_policy
from tandemfeed.admin_server.settings import FeedSettings, load_cluster
from tandemfeed.transport.settings_file import SettingsError
from tandemfeed.v1 import admin_pb2
from tests.admin_server.cluster_files import CLUSTER, EXAMPLES, write_settings

SECOND_CHANNEL = """
[[feed.channel]]
channel_id = 2
topic = "equities.bars"
also_reads = [2]
"""
FIRST_STREAM = "[[feed.source_stream]]\nsource_stream_id = 1"
SHARED = CLUSTER.replace(FIRST_STREAM, SECOND_CHANNEL + FIRST_STREAM)
SHARED = SHARED.replace(':5011"', ':5011", 2 = "239.192.3.1:5021"').replace(':5012"', ':5012", 2 = "239.192.3.2:5022"')


def loaded(folder: Path, text: str) -> FeedSettings:
    """The feed of a cluster file."""
    (feed,) = load_cluster(write_settings(folder, cluster=text)[0]).values()
    return feed


def table(name: str, source_format: Path) -> str:
    """A converter table of the cluster file."""
    file = EXAMPLES / "converter-table.xml"
    return f'[[feed.table]]\nid = "{name}"\nfile = "{file}"\nsource_format = "{source_format}"\n'


def test_a_channel_may_read_streams_that_another_one_owns(tmp_path: Path) -> None:
    feed = loaded(tmp_path, SHARED)
    described = describe_feed(feed, feed.session)
    assert [list(channel.source_stream_ids) for channel in described.channels] == [[1, 2], [2]]
    assert [stream.owner_channel_id for stream in described.source_streams] == [1, 1]


def test_a_channel_reads_its_own_streams_and_others(tmp_path: Path) -> None:
    text = SHARED.replace("source_stream_ids = [1, 2]", "source_stream_ids = [1]")
    feed = loaded(tmp_path, text.replace("also_reads = [2]", "source_stream_ids = [2]\nalso_reads = [1]"))
    assert [channel.read_stream_ids for channel in feed.channels] == [(1,), (2, 1)]
    assert [feed.owner_of(stream).channel_id for stream in (1, 2)] == [1, 2]


def test_the_list_of_feeds_names_the_owner_of_a_shared_stream(tmp_path: Path) -> None:
    feed = loaded(tmp_path, SHARED)
    reply = admin_pb2.GetStatusReply(feeds=[admin_pb2.FeedStatus(feed=describe_feed(feed, feed.session))])
    console = Console(width=120, record=True)
    print_feeds(reply, console)
    shown = [line for line in console.export_text().splitlines() if "N-Z" in line]
    assert ["of channel" in line for line in shown] == [False, True]
    assert "2 N-Z (of channel 1)" in shown[1]


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        (
            "also_reads = [2]",
            "also_reads = [1, 3]",
            ", line 18: feed[0].channel[1].also_reads has 3, which is not a source_stream_id of the feed, "
            "which has [1, 2]",
        ),
        (
            "also_reads = [2]",
            "also_reads = [2, 1, 2]",
            ", line 18: feed[0].channel[1].also_reads has 2, which the channel reads already; remove it",
        ),
        (
            "source_stream_ids = [1, 2]",
            "source_stream_ids = [1, 2]\nalso_reads = [1]",
            ", line 14: feed[0].channel[0].also_reads has 1, which the channel reads already; remove it",
        ),
        (
            "source_stream_ids = [1, 2]",
            "source_stream_ids = [1]",
            ", line 10: feed[0].channel must have each source stream in source_stream_ids of exactly one channel; "
            "found are [1], defined are [1, 2]; a further channel that reads a stream names it in also_reads",
        ),
        (
            "also_reads = [2]",
            "source_stream_ids = [2]",
            ", line 10: feed[0].channel must have each source stream in source_stream_ids of exactly one channel; "
            "found are [1, 2, 2], defined are [1, 2]; a further channel",
        ),
        (
            "also_reads = [2]",
            "",
            ", line 15: feed[0].channel[1].source_stream_ids is missing or empty; a channel needs source streams, here",
        ),
        (
            "also_reads = [2]",
            'also_reads = ["2"]',
            ', line 18: feed[0].channel[1].also_reads[0] is "2"; it must be an integer',
        ),
    ],
)
def test_a_wrong_reader_of_a_stream_is_refused_with_line_and_key(
    tmp_path: Path, old: str, new: str, error: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        loaded(tmp_path, SHARED.replace(old, new, 1))
    assert str(refused.value).startswith(f"{tmp_path / 'cluster.toml'}{error}")


def test_the_tables_that_convert_a_stream_have_one_source_format(tmp_path: Path) -> None:
    own = EXAMPLES / "source-format.xml"
    other = tmp_path / "other.xml"
    other.write_text(own.read_text().replace("</sourceFormat>", "<!-- another version --></sourceFormat>"))
    text = SHARED.replace("source_stream_ids = [1, 2]", 'source_stream_ids = [1, 2]\ntable = "ticks"')
    text = text.replace("also_reads = [2]", 'also_reads = [2]\ntable = "bars"')
    assert loaded(tmp_path, text + table("ticks", own) + table("bars", own)).tables
    with pytest.raises(SettingsError) as refused:
        loaded(tmp_path, text + table("ticks", own) + table("bars", other))
    assert 'channel[1].table is "bars", which has another source format than "ticks", the table of channel 1;' in str(
        refused.value
    )
    assert "both channels read source stream 2" in str(refused.value)


def test_contributions_to_a_shared_stream_go_to_its_owner(tmp_path: Path) -> None:
    owned = SHARED.replace("source_stream_ids = [1, 2]", "source_stream_ids = [1]")
    owned = owned.replace("also_reads = [2]", 'source_stream_ids = [2]\ntable = "ticks"')
    third = SECOND_CHANNEL.replace("2\ntopic", "3\ntopic").replace("bars", "copies")
    text = owned.replace(FIRST_STREAM, third + FIRST_STREAM)
    for adapter in (1, 2):
        group = f'2 = "239.192.3.{adapter}:502{adapter}"'
        text = text.replace(group, f'{group}, 3 = "239.192.4.{adapter}:503{adapter}"')
    text = text.replace('group = "239.192.1.2:5002"', 'group = "239.192.1.2:5002"\ncontributions = "127.0.0.1:7412"')
    feed = loaded(tmp_path, text + table("ticks", EXAMPLES / "source-format.xml"))
    assert [channel.channel_id for channel in feed.contributed_channels] == [2]
    assert describe_feed(feed, feed.session).source_streams[1].owner_channel_id == 2


def test_the_example_has_two_tables_for_its_streams_and_grants_their_channels_separately() -> None:
    folder = EXAMPLES.parent / "two-tables"
    (feed,) = load_cluster(folder / "cluster.toml").values()
    policy = load_policy(folder / "policy.toml", {feed.name: feed})
    granted = [channel.topic for channel in feed.channels if policy.extent("day-reader", channel.topic, 0)]
    assert granted == ["demo.days"]
    assert {channel.topic: channel.read_stream_ids for channel in feed.channels} == {
        "demo.trades": (1, 2),
        "demo.days": (1, 2),
    }
