"""A broken page is found: the readers of pages refuse what they do not know, and report what does not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import BrokenPage, blocks_of
from tests.docs.commands import BadExample, check_command_lines, is_as_expected
from tests.docs.reader import Reader


def page(folder: Path, *blocks: str) -> Path:
    path = folder / "page.md"
    path.write_text("# A page\n\n" + "\n\n".join(blocks) + "\n")
    return path


def failures(folder: Path, *blocks: str) -> list[str]:
    """What is wrong with the blocks of a page."""
    with Reader(folder / "checkout", folder / "bin") as reader:
        return [failure for block in blocks_of(page(folder, *blocks)) if (failure := reader.failure(block))]


def fenced(language: str, text: str, directive: str = "") -> str:
    return (f"<!-- docs: {directive} -->\n" if directive else "") + f"```{language}\n{text}\n```"


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (fenced("", "x = 1"), "no language"),
        ("```python\nx = 1", "does not end"),
        (fenced("python", "x = 1", "skip"), "not one of the directives"),
        (fenced("python", "x = 1", "parse only"), "needs text"),
        (fenced("python", "x = 1", "serves: for ever"), "has no text"),
        ("<!-- docs: serves -->\nA paragraph.", "directly above"),
    ],
)
def test_a_page_with_an_unreadable_block_is_refused(tmp_path: Path, block: str, reason: str) -> None:
    with pytest.raises(BrokenPage, match=reason):
        blocks_of(page(tmp_path, block))


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (fenced("python", "print(undefined)"), "NameError"),
        (fenced("python", "print('done')", "interrupt after: started"), "without printing 'started'"),
        (fenced("sh", "false"), "exit status 1"),
        (fenced("sh", "./run fly", "parse only: slow"), "no task 'fly'"),
        (fenced("sh", "./run demo --fast", "parse only: slow"), "unrecognized arguments: --fast"),
        (fenced("sh", "./run check --fast", "parse only: slow"), "takes no options"),
        (fenced("sh", "./run test --fast", "parse only: slow"), "unrecognized arguments: --fast"),
        (fenced("sh", "./run drill --fault none", "parse only: slow"), "none"),
        (fenced("sh", "tandemfeed subscribe --count 0", "parse only: slow"), "is not a number of messages"),
        (fenced("sh", "tandemfeed fly", "parse only: slow"), "unknown command 'fly'"),
        (fenced("sh", "python -m tests.fly", "parse only: slow"), "no main"),
        (fenced("sh", "fly", "parse only: slow"), "not a command that"),
        (fenced("sh", "if then", "parse only: slow"), "syntax error"),
        (fenced("sh", "tandemfeed fly", "serves"), "ended before it was ready"),
        (fenced("console", "$ echo one\ntwo"), "the page shows"),
        (fenced("console", "one"), "must begin with a command"),
        (fenced("toml", "[identity.a]\nroles = ['king']"), "king"),
        (fenced("toml", "[colour]\nred = 1"), "neither a cluster file, a policy nor a file of issuers"),
        (fenced("xml", "<sourceFormat name='x'><message/></sourceFormat>"), "needs the attribute 'name'"),
        (fenced("xml", "<convert mesage='trade'/>", "parse only: a part"), "mesage"),
        (fenced("json", "{"), "JSONDecodeError"),
        (fenced("mermaid", "picture"), "not a diagram"),
        (fenced("text", "output"), "needs the directive `sample`"),
        (fenced("cobol", "STOP RUN."), "no test knows"),
    ],
)
def test_a_block_that_does_not_work_is_reported_with_its_line(tmp_path: Path, block: str, reason: str) -> None:
    (failure,) = failures(tmp_path, "First paragraph.", block)
    assert failure.startswith("page.md:7:" if block.startswith("<!--") else "page.md:6:")
    assert reason in failure


def test_a_page_that_works_is_read_in_order_in_one_folder_and_one_namespace(tmp_path: Path) -> None:
    blocks = [
        fenced("sh", "mkdir here; cd here\necho 5 >number"),
        fenced("python", "number = int(open('number').read())"),
        fenced("python", "while True:\n    print('counted', number)\n    number += 1", "interrupt after: counted 7"),
        fenced("python", "open('number', 'w').write(str(number))"),
        fenced("console", "$ cat number\n7\n$ echo one two\none …"),
        fenced("text", "anything", "sample: an example"),
    ]
    assert failures(tmp_path, *blocks) == []


def test_commands_after_comments_pipes_and_line_ends_are_checked() -> None:
    check_command_lines(
        'TASK=demo ./run demo --keep   # it\'s long\n./run drill \\\n  --fault all\ncd "a b" && ./run lint'
    )
    for wrong in ("cd a && ./run fly", "./run lint | fly", "./run drill \\\n  --folt all"):
        with pytest.raises(BadExample):
            check_command_lines(wrong)


def test_output_is_compared_without_white_space_and_an_ellipsis_stands_for_any_text() -> None:
    assert is_as_expected("a … d\ne", "a b\nc d e")
    assert not is_as_expected("a … d", "a b c")
    assert not is_as_expected("a.c", "abc")
