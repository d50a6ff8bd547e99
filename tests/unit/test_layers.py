"""The shape of the project: imports go down only, and only some modules may know Ray or Spark."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "pulsar_ray"
SPARK_PACKAGE = ROOT / "spark" / "pulsar_ray_spark"

# Lowest first. A unit may import units of its own row and of the rows above it in this list.
LAYERS = (
    (
        "api_enum",
        "errors",
        "clock",
        "closed_places",
        "compiled",
        "config",
        "inheritable",
        "kernel_calls",
        "numpy_on_demand",
        "on_demand",
        "setting_fields",
    ),
    ("model",),
    ("security",),
    ("format",),
    ("ledger",),
    ("managed_ledger",),
    ("journal",),
    ("moving",),
    ("dispatch",),
    ("session",),
    ("lane",),
    ("transport",),
    ("broker",),
    ("maintenance",),
    ("actors",),
    ("launch",),
    ("client", "exceptions", "functions", "schema", "tableview"),
    ("admin", "monitoring"),
    ("asyncio",),
    ("gateway",),
    ("data", "cli", "queue", "serve", "testing"),
)
RANK = {unit: rank for rank, units in enumerate(LAYERS) for unit in units}
MOST_FILES_IN_A_ROOM = 21
TOP = len(LAYERS)  # pulsar_ray/__init__.py and __main__.py, which offer everything

UNITS_WITH_RAY = {
    "transport",
    "actors",
    "launch",
    "data",
    "queue",  # for the exceptions of ray.util.queue
    "serve",  # for the classes of ray.serve that it implements
}
CLI_MODULES_WITH_RAY = {"main.py", "__main__.py"}
# Commands that need the Spark package load it when they are run, and say what to install if it is missing.
CLI_MODULES_WITH_SPARK_PACKAGE = {"spark_package.py"}
SPARK = {"pyspark", "raydp"}

PRODUCT = sorted(PACKAGE.rglob("*.py"))
SPARK_PRODUCT = sorted(SPARK_PACKAGE.rglob("*.py"))


@functools.cache
def imported(source: str) -> tuple[str, ...]:
    """Dotted names of everything imported anywhere, also under TYPE_CHECKING and inside functions."""
    return tuple(_imported(source))


def _imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not used"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from (str(arg.value) for arg in node.args if isinstance(arg, ast.Constant))


def unit_of(path: Path) -> str:
    """The top-level module or package below pulsar_ray, '' for pulsar_ray itself."""
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "" if first in ("__init__", "__main__") else first


def unit_of_import(name: str) -> str | None:
    """The unit an imported name lies in, None if it is not ours; names of pulsar_ray itself count as ''."""
    parts = name.split(".")
    if parts[0] != "pulsar_ray":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in RANK else ""


def upward_imports(unit: str, source: str) -> list[str]:
    """Imports that a module of `unit` may not make."""
    rank = RANK.get(unit, TOP)
    found = []
    for name in imported(source):
        target = unit_of_import(name)
        # The version is the one name that may be had from the package itself.
        if target is None or name == "pulsar_ray.__version__":
            continue
        if RANK.get(target, TOP) > rank:
            found.append(name)
    return found


def third_parties(source: str) -> set[str]:
    return {name.split(".")[0] for name in imported(source)}


def may_import_ray(path: Path) -> bool:
    unit = unit_of(path)
    return unit in UNITS_WITH_RAY or (unit == "cli" and path.name in CLI_MODULES_WITH_RAY)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def forbidden_third_parties(path: Path) -> set[str]:
    """Ray, Spark and the Spark package, unless the module is one of those that may import them."""
    forbidden = SPARK | {"ray", "pulsar_ray_spark"}
    if may_import_ray(path):
        forbidden -= {"ray"}
    if unit_of(path) == "cli" and path.name in CLI_MODULES_WITH_SPARK_PACKAGE:
        forbidden -= {"pulsar_ray_spark"}
    return third_parties(path.read_text()) & forbidden


# Each of the following looks at all files: a test of its own for each file costs more than the look.
def test_every_module_has_its_layer() -> None:
    units = {unit_of(path) for path in PRODUCT}
    assert units - RANK.keys() == {""}, "give them a place in LAYERS"


def test_imports_go_down_only() -> None:
    upward = {relative(path): upward_imports(unit_of(path), path.read_text()) for path in PRODUCT}
    assert {path: names for path, names in upward.items() if names} == {}


def test_only_some_modules_import_ray_and_none_spark() -> None:
    found = {relative(path): forbidden_third_parties(path) for path in PRODUCT}
    assert {path: names for path, names in found.items() if names} == {}


def test_the_spark_package_uses_no_test_or_command_code() -> None:
    units = {
        relative(path): {unit_of_import(name) for name in imported(path.read_text())}
        for path in SPARK_PRODUCT
    }
    assert [path for path, used in units.items() if used & {"cli", "testing"}] == []


@pytest.mark.parametrize(
    ("unit", "source", "upward"),
    [
        ("model", "from pulsar_ray.errors import X", []),
        ("model", "from pulsar_ray.model.message_id import X", []),
        ("model", "from pulsar_ray.format import block", ["pulsar_ray.format.block"]),
        ("model", "from pulsar_ray import format", ["pulsar_ray.format"]),
        ("model", "import pulsar_ray.lane.serving.server", ["pulsar_ray.lane.serving.server"]),
        ("client", "from pulsar_ray import Client", ["pulsar_ray.Client"]),
        ("cli", "from pulsar_ray import __version__", []),
        ("dispatch", "def f():\n import pulsar_ray.actors", ["pulsar_ray.actors"]),
        ("dispatch", "importlib.import_module('pulsar_ray.actors')", ["pulsar_ray.actors"]),
        ("", "from pulsar_ray.client.client import Client", []),
    ],
)
def test_the_rule_itself(unit: str, source: str, upward: list[str]) -> None:
    assert upward_imports(unit, source) == upward


def module_of(path: Path) -> str:
    """The dotted name of a file of the package."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def a_circle(sources: dict[str, str]) -> list[str]:
    """Modules that import each other round and round, first and last the same one; [] if there are none."""
    graph: dict[str, set[str]] = {}
    for module, source in sources.items():
        names = (name if name in sources else name.rpartition(".")[0] for name in imported(source))
        graph[module] = {name for name in names if name in sources} - {module}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    # The package itself offers names of everything, lazily; upward_imports refuses whoever takes one from it.
    modules = {module_of(path): path.read_text() for path in PRODUCT if unit_of(path)}
    assert a_circle(modules) == []


@pytest.mark.parametrize(
    ("sources", "in_circle"),
    [
        ({"p.a": "import p.b", "p.b": "import p.c", "p.c": ""}, set()),
        ({"p.a": "import p.a"}, set()),
        ({"p.a": "import p.b", "p.b": "from p.a import A"}, {"p.a", "p.b"}),
        (
            {"p.a": "from p import b", "p.b": "from p import c", "p.c": "from p.a import A"},
            {"p.a", "p.b", "p.c"},
        ),
        ({"p.a": "import p.b", "p.b": "if TYPE_CHECKING:\n from p.a import A"}, {"p.a", "p.b"}),
        ({"p.a": "import p.b", "p.b": "def f():\n import p.a"}, {"p.a", "p.b"}),
    ],
)
def test_a_circle_is_found(sources: dict[str, str], in_circle: set[str]) -> None:
    assert set(a_circle(sources)) == in_circle


def project_files() -> list[Path]:
    kinds = {".py", ".md", ".toml", ".yaml", ".yml", ".sh", ".json", ".cfg", ".txt"}
    named = {"Makefile", "run", "LICENSE"}
    skipped = {"build", "dist", "__pycache__", "node_modules"}

    def walk(directory: Path) -> Iterator[Path]:
        for path in sorted(directory.iterdir()):
            hidden = path.name.startswith(".") and path.name not in (".ci", ".github")
            if path.is_dir() and not (hidden or path.is_symlink() or path.name in skipped):
                yield from walk(path)
            elif path.is_file() and (path.suffix in kinds or path.name in named):
                yield path

    return list(walk(ROOT))


def test_no_room_is_crowded() -> None:
    rooms = Counter(relative(path.parent) for path in PRODUCT + SPARK_PRODUCT if path.name != "__init__.py")
    assert {room: files for room, files in rooms.items() if files > MOST_FILES_IN_A_ROOM} == {}


def test_no_file_names_a_place_of_one_machine() -> None:
    # Put together here, so that this file does not match itself.
    places = re.compile(r"(?<![\w.~])/(?:" + "|".join(("work", "tmp/" + "plan", "tmp/" + "probe")) + ")/")
    assert places.search("cd /" + "work/main")
    found = [relative(path) for path in project_files() if places.search(path.read_text(errors="replace"))]
    assert found == []


def test_the_control_plane_runs_without_ray() -> None:
    modules = (
        "broker_actors", "catalog_opening", "change_log_partitions", "control_plane", "controller",
        "parked_clients", "passivation", "policy_delivery", "stores.lost_stores", "stores.store_parts",
        "stores.stores", "topic_actors",
        "watching.health_check", "watching.overview", "watching.resource_usage", "watching.silence",
    )  # fmt: skip
    imports = "; ".join(f"import pulsar_ray.actors.{module}" for module in modules)
    subprocess.run(
        [sys.executable, "-c", f"{imports}; import sys; assert 'ray' not in sys.modules"], check=True
    )
