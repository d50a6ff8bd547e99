"""Grafana's own types take the dashboard: those that Grafana Labs generate from its schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from pulsar_ray.monitoring.dashboard import dashboard_text
from pulsar_ray.monitoring.panels import ROWS

WANTED = "Grafana's schema comes with grafana-foundation-sdk: pip install '.[dev]', from Python 3.11 on"
model: Any = pytest.importorskip("grafana_foundation_sdk.models.dashboard", reason=WANTED)
units: Any = pytest.importorskip("grafana_foundation_sdk.models.units", reason=WANTED)
encoder: Any = pytest.importorskip("grafana_foundation_sdk.cog.encoder", reason=WANTED)
plugins: Any = pytest.importorskip("grafana_foundation_sdk.cog.plugins", reason=WANTED)

Document = dict[str, Any]


def read_by_grafana(document: Document) -> tuple[Any, Any]:
    """The document as Grafana's types, and what these write: they leave out what they do not know."""
    plugins.register_default_plugins()
    typed = model.Dashboard.from_json(document)
    return typed, json.loads(json.dumps(typed, cls=encoder.JSONEncoder))


def lost(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:
    """What of our document is not in theirs; defaults that they add do not count."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            if key in theirs:
                yield from lost(value, theirs[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}"
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for index, value in enumerate(ours):
            yield from lost(value, theirs[index], f"{path}[{index}]")
    elif ours != theirs:
        yield f"{path}: {ours!r} -> {theirs!r}"


def mistyped(value: Any, kind: Any, path: str) -> Iterator[str]:
    """Where a value is not of the type that Grafana's schema declares."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is list and isinstance(value, list):
        for index, item in enumerate(value):
            yield from mistyped(item, arguments[0], f"{path}[{index}]")
    elif origin is Union:
        choices = [choice for choice in arguments if (choice is type(None)) is (value is None)]
        if hasattr(value, "to_json"):
            choices = [choice for choice in choices if choice is type(value)] or choices
        if len(choices) == 1:
            yield from mistyped(value, choices[0], path)
        elif all(list(mistyped(value, choice, path)) for choice in choices):
            yield f"{path}: {value!r} is no {kind}"
    elif hasattr(value, "to_json"):
        # What differs from panel to panel is of its plugin's own type, which the declaration does not name.
        yield from mistyped_fields(value, path)
    elif not is_of(value, kind, origin, arguments):
        yield f"{path}: {value!r} is no {kind}"


def is_of(value: Any, kind: Any, origin: Any, arguments: tuple[Any, ...]) -> bool:
    if origin is Literal:
        return value in arguments
    if kind is float:
        return type(value) in (float, int)
    if kind in (str, bool, int, type(None)):
        return type(value) is kind
    if origin is not None:
        return isinstance(value, origin)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return value in [member.value for member in kind]
    # `object` and interfaces say nothing.
    return not isinstance(kind, type) or isinstance(value, kind)


def mistyped_fields(value: Any, path: str) -> Iterator[str]:
    for name, kind in get_type_hints(type(value)).items():
        yield from mistyped(getattr(value, name), kind, f"{path}.{name}")


def test_grafanas_schema_takes_all_of_it() -> None:
    document = json.loads(dashboard_text())
    typed, theirs = read_by_grafana(document)
    assert list(lost(document, theirs)) == []
    assert list(mistyped_fields(typed, "")) == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda document: document.update(refreshh="1s"), ".refreshh"),
        (lambda document: document["panels"][1].update(titel="t"), ".panels[1].titel"),
        (lambda document: document["panels"][1].update(title=7), ".panels[1].title"),
        (lambda document: document["panels"][1]["gridPos"].update(w="3"), ".panels"),
        (
            lambda document: document["panels"][1]["targets"][0].update(exprr=""),
            ".panels[1].targets[0].exprr",
        ),
        (lambda document: document["panels"][1]["targets"][0].update(range="yes"), ".panels"),
        (lambda document: document["panels"][1]["options"].update(graphMode="lines"), ".panels"),
        (lambda document: document["templating"]["list"][1].update(multi="no"), ".templating"),
    ],
)
def test_a_mistake_would_be_found(change: Callable[[Document], None], complaint: str) -> None:
    document = json.loads(dashboard_text())
    change(document)
    typed, theirs = read_by_grafana(document)
    found = [*lost(document, theirs), *mistyped_fields(typed, "")]
    assert any(text.startswith(complaint) for text in found), found


def test_units_are_grafanas() -> None:
    known = {value for value in vars(units).values() if isinstance(value, str)}
    assert {panel.unit for row in ROWS for panel in row.panels} <= known
