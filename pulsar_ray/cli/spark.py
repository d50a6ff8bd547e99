"""`pulsar-ray spark`: a shell on Spark, and programs that use it."""

from __future__ import annotations

import code
import importlib
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import click

from pulsar_ray.cli.groups import BrokerCommands
from pulsar_ray.cli.spark_package import spark_module
from pulsar_ray.cli.target import Target, pass_target
from pulsar_ray.cli.watching.progress import progress


def is_python(path: Path) -> bool:
    """Whether the file can be compiled; says on standard error why not, as Python does."""
    try:
        compile(path.read_bytes(), str(path), "exec")
    except (SyntaxError, ValueError) as error:  # ValueError: a zero byte
        traceback.print_exception(error.with_traceback(None))
        return False
    return True


def run_file(path: Path, arguments: Sequence[str]) -> int:
    """Run the file with these arguments, and return its exit code.

    An error that it raises is shown with its traceback and is exit code 1; KeyboardInterrupt goes through.
    """
    with _as_main_program(path, arguments):
        return _guarded(lambda: runpy.run_path(str(path), run_name="__main__"), str(path))


def run_source(source: str, name: str, names: dict[str, Any]) -> int:
    """Run statements with these names defined, and return their exit code, as `run_file` does."""
    return _guarded(lambda: exec(compile(source, name, "exec"), names), name)  # noqa: S102 - the user's own


def _guarded(program: Callable[[], object], name: str) -> int:
    try:
        program()
    except SystemExit as exit_:
        return _exit_code(exit_)
    except Exception as error:  # noqa: BLE001 - as Python does with whatever a program raises
        traceback.print_exception(error.with_traceback(_within(name, error.__traceback__)))
        return 1
    return 0


@contextmanager
def _as_main_program(path: Path, arguments: Sequence[str]) -> Iterator[None]:
    directory = str(path.resolve().parent)
    argv = sys.argv
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, directory)
    try:
        yield
    finally:
        sys.argv = argv
        if directory in sys.path:
            sys.path.remove(directory)


def _exit_code(exit_: SystemExit) -> int:
    if exit_.code is None:
        return 0
    if isinstance(exit_.code, int):
        return exit_.code
    sys.stderr.write(f"{exit_.code}\n")
    return 1


def _within(name: str, frames: TracebackType | None) -> TracebackType | None:
    """The frames from the program's own on; none of the command that runs the program."""
    inner = frames
    while inner is not None and inner.tb_frame.f_code.co_filename != name:
        inner = inner.tb_next
    return inner


_BANNER = """Spark {version} runs on this Ray cluster. Ready to use: spark, pulsar_ray, pulsar_ray_spark.
  pulsar_ray_spark.read(spark, "a-topic").show()
Ctrl-D ends the shell, and Spark with it."""
_OFFERED = ("pulsar_ray", "pulsar_ray_spark")

Command = TypeVar("Command", bound=Callable[..., Any])


def _settings(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for each in given:
        key, is_setting, value = each.partition("=")
        if not is_setting:
            raise click.BadParameter(f"{each!r} is no KEY=VALUE")
        settings[key.strip()] = value.strip()
    return settings


_OPTIONS = (
    click.option(
        "--num-executors", type=click.IntRange(min=1), help="How many executors to start.  [default: 1]"
    ),
    click.option("--executor-cores", type=click.IntRange(min=1), help="CPUs of each executor.  [default: 1]"),
    click.option("--executor-memory", metavar="SIZE", help="Heap of each executor.  [default: 1g]"),
    click.option(
        "--conf",
        multiple=True,
        metavar="KEY=VALUE",
        callback=_settings,
        help="A setting of Spark; may be repeated.",
    ),
)


def _session_options(command: Command) -> Command:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.group(cls=BrokerCommands, invoke_without_command=True)
@_session_options
@pass_target
@click.pass_context
def spark(context: click.Context, target: Target, /, **settings: Any) -> None:
    """Open a Python shell with Spark on this Ray cluster.

    The names spark, pulsar_ray and pulsar_ray_spark are ready in it. Statements come from standard input
    where that is no terminal. Without Ray here, an embedded broker is started, as by the other commands.

    \b
    Examples:
      pulsar-ray spark
      pulsar-ray spark --executor-cores 2 --conf spark.sql.shuffle.partitions=8
      echo 'print(pulsar_ray_spark.read(spark, "orders").count())' | pulsar-ray spark
      pulsar-ray spark run report.py --month 11
    """
    if context.invoked_subcommand is not None:
        if any(settings.values()):
            raise click.UsageError(f"give these options behind {context.invoked_subcommand}")
        return
    with _session(target, "pulsar-ray shell", settings) as session:
        context.exit(_shell(session))


@spark.command(context_settings={"allow_interspersed_args": False})
@_session_options
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@pass_target
@click.pass_context
def run(
    context: click.Context, target: Target, /, file: Path, arguments: tuple[str, ...], **settings: Any
) -> None:
    """Run a Python FILE with Spark, and end with its exit code.

    Spark runs on this Ray cluster when the file begins: pulsar_ray_spark.start() in it returns the
    session, as does SparkSession.builder.getOrCreate(). Everything behind FILE is the file's own. Spark
    writes to standard error, so that standard output is the file's.

    \b
    Examples:
      pulsar-ray spark run report.py --month 11
      pulsar-ray spark run --executor-cores 2 --executor-memory 2g report.py
    """
    if not is_python(file):
        context.exit(1)
    with _session(target, file.stem, settings):
        context.exit(run_file(file, arguments))


@contextmanager
def _session(target: Target, app_name: str, settings: dict[str, Any]) -> Iterator[Any]:
    stack = ExitStack()
    program = spark_module("program").session_of_program(
        app_name, service_url=target.service_url, data_dir=target.data_dir, **settings
    )
    with stack:
        with progress("starting Spark"):
            session = stack.enter_context(program)
        try:
            yield session
        finally:
            with progress("ending Spark"):
                stack.close()


def _shell(session: Any) -> int:
    names: dict[str, Any] = {name: importlib.import_module(name) for name in _OFFERED}
    names |= {"spark": session, "__name__": "__main__"}
    if not sys.stdin.isatty():
        return run_source(sys.stdin.read(), "<stdin>", names)
    importlib.import_module("readline")  # keeps lines, for the arrow keys
    click.echo(_BANNER.format(version=session.version), err=True)
    code.interact(banner="", local=names, exitmsg="")
    return 0
