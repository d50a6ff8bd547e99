from __future__ import annotations

import re
import subprocess
import sys
from codeop import compile_command
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from itertools import groupby
from operator import attrgetter, itemgetter
from pathlib import Path

import pytest

from pulsar_ray.config import Settings
from pulsar_ray.model.policies import POLICIES
from tests.docs.fences import Block, blocks_of, is_printed
from tests.docs.new_user import ROOT, new_environment
from tests.docs.settings_table import reserved_names, settings_rows

README = ROOT / "README.md"
POLICIES_PAGE = ROOT / "docs" / "policies.md"
# Without, the tour leaves out its block about it.
HAS_SPARK = find_spec("pyspark") is not None
SPARK_PAGE = ROOT / "docs" / "spark.md"
TOURS = (
    README,
    ROOT / "docs" / "tour.md",
    ROOT / "docs" / "ray-data.md",
    ROOT / "docs" / "schemas.md",
    ROOT / "docs" / "compaction.md",
    POLICIES_PAGE,
)
# Nothing of it runs without Spark.
SPARK_TOUR = pytest.param(
    SPARK_PAGE,
    marks=pytest.mark.skipif(not HAS_SPARK, reason="needs Spark"),
    id="spark.md",
)
SETTINGS = ROOT / "docs" / "settings.md"
RUN = ("python", "console")
TIMEOUT_S = 300


def sessions(blocks: list[Block]) -> list[list[int]]:
    """The numbers of the blocks that are run, divided where it goes from Python to the shell or back."""
    run = [
        (number, block.language)
        for number, block in enumerate(blocks)
        if block.language in RUN and (HAS_SPARK or "import pulsar_ray_spark" not in block.text)
    ]
    return [[number for number, _ in group] for _, group in groupby(run, key=itemgetter(1))]


class Reader:
    """One who goes through the pages one after the other on one machine, on another once a page failed."""

    def __init__(self, make_directory: Callable[[], Path]) -> None:
        self._make_directory = make_directory
        self._machine = ExitStack()
        self._environment: dict[str, str] | None = None

    @contextmanager
    def reading(self) -> Iterator[dict[str, str]]:
        """The machine's variables; it is left if what is done there fails."""
        if self._environment is None:
            self._environment = self._machine.enter_context(new_environment(self._make_directory()))
        try:
            yield self._environment
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        self._environment = None
        self._machine.close()


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    reader = Reader(lambda: tmp_path_factory.mktemp("machine"))
    yield reader
    reader.leave()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("tour", [*TOURS, SPARK_TOUR], ids=attrgetter("name"))
def test_the_tour_does_what_it_says(tour: Path, reader: Reader, tmp_path: Path) -> None:
    with reader.reading() as environment:
        for numbers in sessions(blocks_of(tour)):
            command = [sys.executable, "-m", "tests.docs.run_blocks", str(tour), *map(str, numbers)]
            done = subprocess.run(
                command,
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
            print(done.stdout)
            assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("tour", [*TOURS, SPARK_PAGE], ids=attrgetter("name"))
def test_the_tour_can_be_typed_into_python(tour: Path) -> None:
    """An interactive Python wants an empty line after a loop."""
    for block in blocks_of(tour):
        if block.language != "python":
            continue
        typed: list[str] = []
        for line in [*block.text.splitlines(), ""]:
            typed.append(line)
            if compile_command("\n".join(typed)) is not None:
                typed = []
        assert not typed, f"line {block.line}"


def test_commands_that_are_not_run_exist() -> None:
    targets = {line.split(":")[0] for line in (ROOT / "Makefile").read_text().splitlines() if ":" in line}
    for block in blocks_of(README):
        if block.language not in RUN:
            assert block.language == "sh"
            for line in block.text.splitlines():
                command = line.partition("#")[0].split()
                assert command[0] in ("make", "ray", "python"), line
                if command[0] == "make":
                    assert command[1] in targets
                elif command[0] == "python":
                    assert command[1:4] == ["-m", "pip", "wheel"], line
                else:
                    assert (ROOT / command[2]).is_file()


@pytest.mark.parametrize(
    ("wanted", "printed", "same"),
    [
        (["a"], ["a"], True),
        (["a"], ["b"], False),
        (["a"], [], False),
        ([], ["a"], False),
        (["a [1]?"], ["a [1]?"], True),
        (["a ... c"], ["a b c"], True),
        (["...", "c"], ["a", "b", "c"], True),
        (["...", "c"], ["a", "b"], False),
    ],
)
def test_comparing_what_is_printed(wanted: list[str], printed: list[str], same: bool) -> None:
    assert is_printed(wanted, printed) is same


def test_every_setting_is_listed_with_its_default_or_as_reserved() -> None:
    text = SETTINGS.read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if line.startswith("| `")] == settings_rows()
    assert reserved_names() == [], "the page has to name what changes nothing yet"


def test_every_policy_is_listed_with_its_values_and_levels() -> None:
    lines = POLICIES_PAGE.read_text(encoding="utf-8").splitlines()
    rows = [
        f"| `{policy.name}`: {policy.doc} | {', '.join(f'`{value}`' for value in policy.settings)} "
        f"| {', '.join(policy.levels)} |"
        for policy in POLICIES.values()
    ]
    assert [line for line in lines if line.startswith("| `")] == rows


def test_a_settings_file_as_shown_is_taken(tmp_path: Path) -> None:
    (shown,) = [block.text for block in blocks_of(SETTINGS) if block.language == "yaml"]
    path = tmp_path / "pulsar_ray.yaml"
    path.write_text(shown)
    assert Settings.load(path, env={}).default_retention_time_in_minutes == 1440


def anchors_of(page: Path) -> set[str]:
    """What a link may name behind `#`: headings in lower case, without punctuation, with hyphens."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_between_pages_lead_somewhere() -> None:
    for page in (README, *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            if "://" in target:
                continue
            name, _, anchor = target.partition("#")
            there = (page.parent / name).resolve() if name else page
            assert there.exists(), (page, target)
            if anchor:
                assert anchor in anchors_of(there), (page, target)


def test_files_that_the_architecture_names_exist() -> None:
    package = ROOT / "pulsar_ray"
    roots = (ROOT, package, ROOT / "spark" / "pulsar_ray_spark")
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?<![\w/<>])((?:[a-z_]+/)+(?:[a-z_]+\.py)?)(?![\w<])", text))
    of_code = {name for name in named if name.endswith(".py") or (package / name.split("/")[0]).is_dir()}
    assert of_code
    assert [name for name in of_code if not any((root / name).exists() for root in roots)] == []
