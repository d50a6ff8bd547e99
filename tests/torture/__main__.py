"""`python -m tests.torture` runs rounds until its time is over or a promise is broken.

A round is repeated by its seed, as far as the seed decides it: which work, which faults, when and where.
"""

from __future__ import annotations

import argparse
import logging
import random
import secrets
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.torture.damage import harms
from tests.torture.nodes import plan as on_nodes
from tests.torture.nodes.lagging import SCENES as SCENES_THAT_LAG
from tests.torture.nodes.round import run_lagging_round, run_nodes_round
from tests.torture.plan import WEIGHTS, counted_kinds
from tests.torture.real import plan as on_ray
from tests.torture.real import round as real
from tests.torture.round import RoundResult, run_round
from tests.torture.scenes import SCENES, Scene, scene_of

SECONDS = 600.0
ROUND_SECONDS = 12.0
RAY_SECONDS = 40.0
SCENES_AT_ONCE = 4
NODES_SECONDS = 25.0
IN_PROCESS, ON_NODES, LAGGING, ON_RAY, ALL = "process", "nodes", "lagging", "ray", "all"
TURNS = (IN_PROCESS, ON_NODES, IN_PROCESS, ON_NODES, LAGGING, ON_RAY)


def scenes_of(seed: int, names: list[str]) -> list[Scene]:
    """The scenes of these names, or some that the seed chooses."""
    if names:
        return [scene for scene in SCENES if scene.name in names]
    return random.Random(seed).sample(SCENES, SCENES_AT_ONCE)


def main() -> int:
    arguments = _arguments()
    directory = arguments.directory or Path(tempfile.mkdtemp(prefix="torture-"))
    end = time.monotonic() + arguments.seconds
    total, rounds = RoundResult(), Counter[str]()
    seeds = iter(arguments.seed or ())
    while True:
        where = arguments.where
        if where == ALL:
            where = TURNS[rounds.total() % len(TURNS)]
        seed = next(seeds, None) if arguments.seed else secrets.randbelow(1 << 31)
        if seed is None or (not arguments.seed and time.monotonic() > end):
            break
        if where == ON_RAY and not arguments.seed:
            # Few rounds are on Ray: each way to end its cluster comes in turn.
            seed = on_ray.seed_with(on_ray.DEADLY[rounds[ON_RAY] % len(on_ray.DEADLY)], seed)
        place = directory / str(seed)
        shutil.rmtree(place, ignore_errors=True)
        began = time.monotonic()
        with _logging_to(place):
            found = _run(where, place, seed, arguments)
        rounds[where] += 1
        for kind in ("operations", "faults", "errors"):
            getattr(total, kind).update(getattr(found, kind))
        print(
            f"    {time.monotonic() - began:.0f} s, {sum(found.operations.values()):,} operations, "
            f"{sum(found.faults.values())} faults, {len(found.violations)} violations",
            flush=True,
        )
        if found.violations:
            total.violations += [f"seed {seed}: {violation}" for violation in found.violations]
            print("\n".join(found.violations))
            again = _again(arguments, where, seed)
            print(f"the history: {place / 'history'}, the log beside it; once more: {again}", flush=True)
            if not arguments.keep_going:
                break
        else:
            shutil.rmtree(place)
    _summarize(total, rounds)
    return 1 if total.violations else 0


@contextmanager
def _logging_to(place: Path) -> Iterator[None]:
    """Have the log in a file, since every fault is in the log of somebody."""
    place.mkdir(parents=True)
    handler = logging.FileHandler(place / "log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()


def _run(where: str, place: Path, seed: int, arguments: argparse.Namespace) -> RoundResult:
    """A round of a seed, in this process, there on several nodes, or on a Ray of its own."""
    is_real = where == ON_RAY
    scenes = (real.scenes_of if is_real else scenes_of)(seed, arguments.scenes)
    if where == LAGGING and not arguments.scenes:
        scenes = random.Random(seed).sample([scene_of(name) for name in SCENES_THAT_LAG], SCENES_AT_ONCE)
    names = ", ".join(scene.name for scene in scenes)
    on = {ON_RAY: " on Ray", ON_NODES: " on several nodes", LAGGING: " on several nodes, lagging"}.get(
        where, ""
    )
    print(f"seed {seed}{on}: {names}", flush=True)
    if is_real:
        return real.run_real_round(place, seed, arguments.ray_seconds, scenes)
    if where in (ON_NODES, LAGGING):
        run = run_nodes_round if where == ON_NODES else run_lagging_round
        return run(place, seed, arguments.nodes_seconds, scenes, arguments.kinds)
    return run_round(place, seed, arguments.round_seconds, scenes, arguments.kinds)


def _again(arguments: argparse.Namespace, where: str, seed: int) -> str:
    beside = "".join(
        f" --{name} {' '.join(repr(value) for value in values)}"
        for name, values in (("scenes", arguments.scenes), ("kinds", arguments.kinds))
        if values
    )
    seconds = f"--round-seconds {arguments.round_seconds:g}"
    if where == ON_RAY:
        seconds = f"--ray-seconds {arguments.ray_seconds:g}"
    if where in (ON_NODES, LAGGING):
        seconds = f"--nodes-seconds {arguments.nodes_seconds:g}"
    return f"python -m tests.torture --seed {seed} --where {where} {seconds}{beside}"


def _summarize(total: RoundResult, rounds: Counter[str]) -> None:
    print(
        f"\n{rounds.total()} rounds, {rounds[ON_NODES] + rounds[LAGGING]} of them on several nodes, "
        f"{rounds[ON_RAY]} on a Ray of their own"
    )
    for title, counts in (
        ("operations", total.operations),
        ("faults", total.faults),
        ("errors that clients were told", total.errors),
    ):
        _print_counts(title, counts)
    missed = sorted(
        (counted_kinds() | harms() | set(on_ray.KINDS) | set(on_nodes.WEIGHTS)) - total.faults.keys()
    )
    if missed:
        print(f"kinds of faults that did not come: {', '.join(missed)}")
    print(f"violations: {len(total.violations) or 'none'}")


def _print_counts(title: str, counts: Counter[str]) -> None:
    print(f"{title}: {sum(counts.values()):,}")
    for name, count in sorted(counts.items(), key=lambda each: -each[1]):
        if count:
            print(f"{count:12,} {name}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="no round begins after so long")
    parser.add_argument("--seed", type=int, nargs="*", help="run the rounds of these seeds, and no others")
    parser.add_argument(
        "--where",
        choices=(IN_PROCESS, ON_NODES, LAGGING, ON_RAY, ALL),
        default=ALL,
        help=f"where rounds run; of all, they take turns: {', '.join(TURNS)}",
    )
    parser.add_argument("--round-seconds", type=float, default=ROUND_SECONDS, help="how long faults last")
    parser.add_argument("--nodes-seconds", type=float, default=NODES_SECONDS, help="on several nodes")
    parser.add_argument("--ray-seconds", type=float, default=RAY_SECONDS, help="the same on Ray")
    parser.add_argument("--scenes", nargs="*", default=[], choices=[scene.name for scene in SCENES])
    parser.add_argument(
        "--kinds",
        nargs="*",
        default=[],
        choices=[*WEIGHTS, *on_nodes.WEIGHTS],
        help="no other faults in process",
    )
    parser.add_argument("--directory", type=Path, help="where histories and data go")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a violation")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
