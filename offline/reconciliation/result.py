"""What a reconciliation found. Invariant: without problems, no message of the session is lost, invented, repeated or
different, as far as its journals tell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tandemfeed.feedcore.range_set import RangeSet
from tandemfeed.offline.reconciliation.conversion import ConversionResult
from tandemfeed.offline.reconciliation.output_copy import Survey
from tandemfeed.offline.reconciliation.source_copy import SourceCopy

RANGES_SHOWN = 20
NO_CHANNEL = 0


@dataclass(frozen=True, slots=True)
class Epoch:
    """A term of an active adapter. `adapter_id` is 0 if its journal was not given."""

    epoch: int
    first_input_seq: int
    adapter_id: int


@dataclass(frozen=True, slots=True)
class AdapterChannel:
    """An adapter's copy of a channel.

    Attributes:
        digest: of all its messages; copies of the same messages have the same digest.
        replaced_count: messages that a newer epoch replaced, which are not counted otherwise.
        repeated_count: messages that the journal has again.
        missing: the `message_seq` that it lacks.
    """

    journal: Path
    adapter_id: int
    message_count: int
    digest: int
    replaced_count: int
    repeated_count: int
    missing: RangeSet


@dataclass(frozen=True, slots=True)
class ChannelResult:
    """A channel in all journals.

    Attributes:
        end_seq: one past the last message that any adapter has.
        missing: the `message_seq` that no adapter has.
        compared_count: messages of which there are several copies.
        different: messages whose copies differ.
    """

    channel_id: int
    end_seq: int
    epochs: tuple[Epoch, ...]
    adapters: tuple[AdapterChannel, ...]
    missing: RangeSet
    compared_count: int
    different: RangeSet

    def problems(self) -> Iterator[str]:
        """What is wrong, as sentences."""
        if self.missing:
            yield f"channel {self.channel_id}: no adapter has messages {ranges_text(self.missing)}"
        if self.different:
            yield f"channel {self.channel_id}: adapters have different messages {ranges_text(self.different)}"


@dataclass(frozen=True, slots=True)
class StreamResult:
    """A source stream in one of the channels that read it, in all journals; the sets are of `source_seq`.

    Attributes:
        channel_id: NO_CHANNEL: no journal has any of the stream.
        end_seq: one past its last message.
        missing: what no adapter has.
        missing_by_journal: what each adapter lacks.
        declared_lost: what an active adapter declared lost.
        invented: what adapters have and the source journal lacks.
        repeated_count: source messages that a journal has in two places.
    """

    channel_id: int
    source_stream_id: int
    end_seq: int
    missing: RangeSet
    missing_by_journal: dict[Path, RangeSet]
    declared_lost: RangeSet
    invented: RangeSet
    repeated_count: int

    @property
    def name(self) -> str:
        """The channel and the source stream."""
        stream = f"source stream {self.source_stream_id}"
        return stream if self.channel_id == NO_CHANNEL else f"channel {self.channel_id}, {stream}"

    def problems(self) -> Iterator[str]:
        """What is wrong, as sentences."""
        stream = self.name
        if self.missing:
            yield f"{stream}: no adapter has source messages {ranges_text(self.missing)}"
        if self.declared_lost:
            yield f"{stream}: an active adapter declared source messages {ranges_text(self.declared_lost)} lost"
        if self.invented:
            yield f"{stream}: adapters have source messages {ranges_text(self.invented)}, the source journal does not"
        if self.repeated_count:
            yield f"{stream}: adapters have {self.repeated_count:,} source messages in two places"


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The result.

    Attributes:
        source: None if only the adapters were compared with each other.
        conversion: None if the source messages were not converted again.
    """

    session: int
    source: SourceCopy | None
    surveys: tuple[Survey, ...]
    streams: tuple[StreamResult, ...]
    channels: tuple[ChannelResult, ...]
    conversion: ConversionResult | None = None

    @property
    def is_absent_somewhere(self) -> bool:
        """True if an adapter lacks messages that another one has."""
        return any(adapter.missing for channel in self.channels for adapter in channel.adapters)

    @property
    def problems(self) -> list[str]:
        """What is wrong, as sentences."""
        found = [] if self.source is None else list(self.source.problems())
        for each in self.surveys:
            if each.damaged_count:
                found.append(
                    f"{each.journal} has {each.damaged_count} damaged records; `tandemfeed journal verify "
                    f"{each.journal}` lists them"
                )
            if len(each.adapter_ids) > 1:
                found.append(f"{each.journal} has packets of adapters {sorted(each.adapter_ids)}; expected one adapter")
        found += [problem for stream in self.streams for problem in stream.problems()]
        found += [problem for channel in self.channels for problem in channel.problems()]
        if self.conversion is not None:
            found += self.conversion.problems()
        if not self.channels:
            found.append(f"the output journals have nothing of session {self.session}")
        return found


def ranges_text(ranges: RangeSet) -> str:
    """Ranges as a text, the last number included; of many, the first ones."""
    shown = [f"{first:,}" if end == first + 1 else f"{first:,}–{end - 1:,}" for first, end in ranges]
    more = len(shown) - RANGES_SHOWN
    return ", ".join(shown[:RANGES_SHOWN]) + (f" and {more:,} more ranges" if more > 0 else "")
