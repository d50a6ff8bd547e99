from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import click
import pytest

from pulsar_ray.cli.administration.topics import topics
from pulsar_ray.cli.main import main
from pulsar_ray.errors import TopicNotFound
from tests.unit.cli.conftest import Run
from tests.unit.cli.fakes import FakeTarget

COMMANDS = list(main.list_commands(click.Context(main)))
NESTED = [
    *(("topics", command) for command in topics.commands),
    ("perf", "produce"),
    ("perf", "consume"),
    ("spark", "run"),
]


def test_help_lists_every_command_and_the_exit_codes(run: Run) -> None:
    result = run(None, "--help")
    assert result.exit_code == 0
    for command in COMMANDS:
        assert f"  {command} " in result.output
    assert "Exit codes" in result.output


@pytest.mark.parametrize("arguments", [*((command,) for command in COMMANDS), *NESTED], ids=" ".join)
def test_every_command_has_help(run: Run, arguments: tuple[str, ...]) -> None:
    result = run(FakeTarget(), *arguments, "--help")
    assert result.exit_code == 0
    assert result.output.startswith("Usage: ")


@pytest.mark.parametrize("group", ["topics", "perf"])
def test_help_of_a_group_says_whole_sentences(run: Run, group: str) -> None:
    usage, commands, listed = run(FakeTarget(), group, "--help").output.partition("\nCommands:\n")
    assert usage
    assert commands
    assert "..." not in listed


@pytest.mark.parametrize("group", [("topics",), ("topics", "policies"), ("schemas",), ("remote",)])
def test_a_group_without_a_command_shows_its_help_line_by_line(run: Run, group: tuple[str, ...]) -> None:
    result = run(FakeTarget(), *group)
    assert "\\n" not in result.output
    assert "Commands:" in result.output.splitlines()


@pytest.mark.parametrize(
    "command", [("produce", "t"), ("topics", "redrive", "t"), ("consume", "t", "-s", "s")]
)
@pytest.mark.parametrize("option", ["--data-dir", "--service-url", "--transport"])
def test_an_option_of_all_commands_behind_one_is_told_its_place(
    run: Run, command: tuple[str, ...], option: str
) -> None:
    result = run(FakeTarget(), *command, option, "x")
    assert result.exit_code == 2
    assert f"{option} goes before the command: pulsar-ray {option} ... {command[0]} ..." in result.stderr


def test_an_option_that_nobody_has_is_refused_as_such(run: Run) -> None:
    result = run(FakeTarget(), "produce", "t", "--datadir", "x")
    assert result.exit_code == 2
    assert "No such option" in result.stderr
    assert "goes before" not in result.stderr


def every_command(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for nested in command.list_commands(context):
            found = command.get_command(context, nested)
            assert found is not None
            yield from every_command(f"{name} {nested}", found)


def test_every_option_says_what_it_is_for() -> None:
    silent = [
        f"{name} {option.opts[0]}"
        for name, command in every_command("pulsar-ray", main)
        for option in command.params
        if isinstance(option, click.Option) and not (option.help or option.hidden)
    ]
    assert silent == []


def test_help_is_there_without_importing_ray() -> None:
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from pulsar_ray.cli.main import main\n"
        "assert CliRunner().invoke(main, ['--help']).exit_code == 0\n"
        "assert CliRunner().invoke(main, ['topics', '--help']).exit_code == 0\n"
        "assert CliRunner().invoke(main, ['spark', 'run', '--help']).exit_code == 0\n"
        "assert not {'ray', 'pyarrow', 'pyspark'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("nothing",), "No such command"),
        (("--service-url", "ray://head:10001", "status"), "host:port"),
        (("--transport", "pigeon", "status"), "pigeon"),
        (("produce",), "TOPIC"),
        (("produce", "t", "--compression", "rar"), "rar"),
        (("produce", "t", "no-such-file"), "no-such-file"),
        (("produce", "t", "--key-regex", "("), "no regular expression"),
        (("produce", "t", "--key-regex", "a", "--key-separator", "b"), "not both"),
        (("consume", "t"), "--subscription"),
        (("consume", "t", "-s", "s", "-n", "0"), "-n"),
        (("consume", "t", "-s", "s", "--from", "middle"), "middle"),
        (("consume", "t", "-s", "s", "--type", "queue"), "queue"),
        (("consume", "t", "-s", "s", "--json", "--key-separator", ":"), "--json"),
        (("topics", "create", "t", "--partitions", "0"), "--partitions"),
        (("perf", "produce", "t", "--rate", "-1"), "--rate"),
        (("standalone", "--idle-seconds", "-1"), "--idle-seconds"),
        (("demo", "--input", "no-such-file"), "no-such-file"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_says_what_is_wrong(
    run: Run, arguments: tuple[str, ...], text: str
) -> None:
    result = run(FakeTarget() if arguments[0][0] != "-" else None, *arguments)
    assert result.exit_code == 2
    assert text in result.stderr


def failing(error: BaseException) -> FakeTarget:
    target = FakeTarget()

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    setattr(target.the_admin.topics, "partitions", fail)  # noqa: B010 - a method may not be assigned to
    return target


def test_a_typed_error_is_one_line_and_exit_code_1(run: Run) -> None:
    result = run(failing(TopicNotFound("the topic x does not exist")), "topics", "list")
    assert result.exit_code == 1
    assert result.stderr == "Error: TopicNotFound: the topic x does not exist\n"
    assert result.stdout == ""


def test_an_error_that_quotes_a_name_with_line_ends_is_one_line(run: Run) -> None:
    result = run(failing(TopicNotFound("the topic a\nb\x1b[2Jé does not exist")), "topics", "list")
    assert result.stderr == "Error: TopicNotFound: the topic a\\nb\\x1b[2Jé does not exist\n"


@pytest.mark.parametrize("error", [ValueError, click.ClickException, click.UsageError])
def test_a_refusal_that_quotes_a_name_with_line_ends_is_one_line(run: Run, error: type[Exception]) -> None:
    result = run(failing(error("no a\nb\x1b[2J is there")), "topics", "list")
    assert result.stderr.splitlines()[-1] == "Error: no a\\nb\\x1b[2J is there"


def test_arguments_that_the_client_refuses_are_wrong_usage(run: Run) -> None:
    result = run(failing(ValueError("count=200000: at most 100000 messages")), "topics", "list")
    assert result.exit_code == 2
    assert result.stderr == "Error: count=200000: at most 100000 messages\n"


def test_a_defect_is_shown_as_one(run: Run) -> None:
    result = run(failing(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")), "topics", "list")
    assert isinstance(result.exception, UnicodeDecodeError)


def test_ctrl_c_is_exit_code_130(run: Run) -> None:
    result = run(failing(KeyboardInterrupt()), "topics", "list")
    assert result.exit_code == 130


def test_what_the_library_remarks_does_not_steer_the_terminal() -> None:
    code = (
        "import logging\n"
        "from pulsar_ray.cli.main import main\n"
        "try:\n"
        "    main(['topics', '--help'])\n"
        "except SystemExit:\n"
        "    logging.getLogger('pulsar_ray.client').warning('topic %s', '\\x1b[31m\\u202e\\nx')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "topic \\x1b[31m\\u202e\nx\n"


def test_reading_an_input_that_is_closed_is_one_line_and_exit_code_1() -> None:
    code = "from pulsar_ray.cli.main import main; main()"
    shell = f"exec {sys.executable} -c '{code}' tokens show --stdin <&-"
    done = subprocess.run(["/bin/sh", "-c", shell], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "Error: [Errno 9] Bad file descriptor\n")
