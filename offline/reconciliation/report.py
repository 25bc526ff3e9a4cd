"""A reconciliation as a text for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tandemfeed.offline.reconciliation.conversion import ConversionResult
from tandemfeed.offline.reconciliation.result import ChannelResult, Reconciliation, ranges_text
from tandemfeed.offline.reconciliation.source_copy import SourceCopy


def text_of(found: Reconciliation) -> str:
    """For people."""
    lines = [f"session {found.session}"]
    if found.source is not None:
        lines.extend(_source_lines(found.source))
    for channel in found.channels:
        lines.extend(_channel_lines(channel))
    for stream in found.streams:
        for journal, missing in stream.missing_by_journal.items():
            if missing:
                lines.append(f"{stream.name}: {journal} lacks source messages {ranges_text(missing)}")
    if found.conversion is not None:
        for journal, count in found.conversion.compared_count.items():
            equal = count - found.conversion.different_count.get(journal, 0)
            lines.append(f"{journal}: {count:,} source messages converted again, {equal:,} with equal messages")
    lines.extend(f"PROBLEM: {each}" for each in found.problems)
    lines.append(_verdict(found))
    return "\n".join(lines)


def _source_lines(source: SourceCopy) -> Iterator[str]:
    refused = source.record_count - source.message_count
    end = "ended" if source.is_ended else "not ended: messages on their way count as missing"
    yield (
        f"source {source.journal}, feed {source.feed}: {source.message_count:,} messages of {source.record_count:,} "
        f"rows ({refused:,} made none); {end}"
    )
    for each in source.streams:
        yield f"  source stream {each.source_stream_id}: {each.message_count:,} messages, digest {each.digest or '-'}"


def _channel_lines(channel: ChannelResult) -> Iterator[str]:
    yield f"channel {channel.channel_id}: messages 1–{channel.end_seq - 1:,}"
    for term in channel.epochs:
        active = f", adapter {term.adapter_id} active" if term.adapter_id else ""
        yield f"  epoch {term.epoch}: from input {term.first_input_seq:,}{active}"
    for each in channel.adapters:
        replaced = f", {each.replaced_count:,} replaced by a newer epoch" if each.replaced_count else ""
        repeated = f", {each.repeated_count:,} repeated" if each.repeated_count else ""
        lacks = f"; lacks {ranges_text(each.missing)}" if each.missing else ""
        yield (
            f"  adapter {each.adapter_id} ({each.journal}): {each.message_count:,} messages, "
            f"digest {each.digest:016x}{replaced}{repeated}{lacks}"
        )
    equal = channel.compared_count - channel.different.count
    yield f"  {channel.compared_count:,} messages in several journals, {equal:,} of them equal"


def _verdict(found: Reconciliation) -> str:
    if problems := len(found.problems):
        return f"NOT RECONCILED: {problems} problem{'s' if problems > 1 else ''}"
    what = "all messages" if found.source is None else "every source message"
    if found.is_absent_somewhere:
        return f"RECONCILED: {what} in at least one adapter's journal, all copies equal; some adapters lack messages"
    return f"RECONCILED: {what} in every adapter's journal, all copies equal"


def document_of(found: Reconciliation) -> dict[str, Any]:
    """For programs: ranges are pairs, the last number included."""
    source = found.source
    return {
        "session": found.session,
        "is_reconciled": not found.problems,
        "is_absent_somewhere": found.is_absent_somewhere,
        "problems": found.problems,
        "source": source
        and {
            "journal": str(source.journal),
            "feed": source.feed,
            "is_ended": source.is_ended,
            "record_count": source.record_count,
            "message_count": source.message_count,
            "quarantined_count": source.quarantined_count,
            "streams": [
                {"source_stream_id": each.source_stream_id, "message_count": each.message_count, "digest": each.digest}
                for each in source.streams
            ],
        },
        "streams": [
            {
                "channel_id": each.channel_id,
                "source_stream_id": each.source_stream_id,
                "last_source_seq": each.end_seq - 1,
                "missing": _pairs(each.missing),
                "missing_by_journal": {str(path): _pairs(missing) for path, missing in each.missing_by_journal.items()},
                "declared_lost": _pairs(each.declared_lost),
                "invented": _pairs(each.invented),
                "repeated_count": each.repeated_count,
            }
            for each in found.streams
        ],
        "channels": [_channel_document(each) for each in found.channels],
        "conversion": found.conversion and _conversion_document(found.conversion),
    }


def _conversion_document(conversion: ConversionResult) -> dict[str, Any]:
    return {
        "compared_count": {str(journal): count for journal, count in conversion.compared_count.items()},
        "different_count": {str(journal): count for journal, count in conversion.different_count.items()},
        "differences": [{**each._asdict(), "journal": str(each.journal)} for each in conversion.differences],
        "ends": conversion.ends,
    }


def _channel_document(channel: ChannelResult) -> dict[str, Any]:
    return {
        "channel_id": channel.channel_id,
        "last_message_seq": channel.end_seq - 1,
        "epochs": [
            {"epoch": each.epoch, "first_input_seq": each.first_input_seq, "adapter_id": each.adapter_id}
            for each in channel.epochs
        ],
        "adapters": [
            {
                "journal": str(each.journal),
                "adapter_id": each.adapter_id,
                "message_count": each.message_count,
                "digest": f"{each.digest:016x}",
                "replaced_count": each.replaced_count,
                "repeated_count": each.repeated_count,
                "missing": _pairs(each.missing),
            }
            for each in channel.adapters
        ],
        "missing": _pairs(channel.missing),
        "compared_count": channel.compared_count,
        "different": _pairs(channel.different),
    }


def _pairs(ranges: Any) -> list[tuple[int, int]]:
    return [(first, end - 1) for first, end in ranges]
