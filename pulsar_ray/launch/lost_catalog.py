"""Names the catalog's node to whoever asks a broker whose controller does not answer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import ray

from pulsar_ray.broker.catalog.founding import place_of_catalog
from pulsar_ray.errors import CatalogMissing, NotConnected, Timeout
from pulsar_ray.transport.actor_names import CONTROLLER, NAMESPACE, is_store_name
from pulsar_ray.transport.this_ray import running_names

ANSWER_S = 5.0

Description = dict[str, Any]


def asked_controller(ask: Callable[[], Description | None]) -> Description | None:
    """Return what the controller answers; None if nothing of a broker runs on this Ray.

    Raises CatalogMissing if stores run without a controller, and what `ask` raises, with the node of the
    catalog if the controller did not answer.
    """
    try:
        described = ask()
    except (NotConnected, Timeout) as error:
        place = _place_by_stores()
        if not place:
            raise
        raise type(error)(f"{error.text}; {place}") from None
    if described is None:
        refuse_without_controller()
    return described


def refuse_without_controller() -> None:
    """Raise CatalogMissing if stores run on this Ray, and no controller."""
    with contextlib.suppress(ValueError):
        ray.get_actor(CONTROLLER, namespace=NAMESPACE)
        return
    if place := _place_by_stores():
        raise CatalogMissing(f"the broker's stores run without its controller; {place}")


def _place_by_stores() -> str:
    """The place of the catalog as the stores know it; "" if none answers."""
    stores = []
    for name in filter(is_store_name, running_names()):
        with contextlib.suppress(ValueError):  # it went just now
            stores.append(ray.get_actor(name, namespace=NAMESPACE))
    asked = [store.describe.remote() for store in stores]
    while asked:
        done, asked = ray.wait(asked, timeout=ANSWER_S)
        if not done:
            return ""
        with contextlib.suppress(ray.exceptions.RayError):
            identity = ray.get(done[0])["identity"]
            if identity is not None and (place := place_of_catalog(identity)):
                return place
    return ""
