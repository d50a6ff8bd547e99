"""Asks for a client's handles whether its role may have them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from pulsar_ray.client.consumer.topic_pattern import TopicPattern
from pulsar_ray.client.endpoint.oauth2 import ClientCredentials
from pulsar_ray.client.options.authentication import Authentication
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.errors import AuthenticationError
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.security.authentication import basic_header
from pulsar_ray.security.authorization import Right
from pulsar_ray.security.certificates import SCHEME, proof
from pulsar_ray.transport.cluster import Cluster


class Identity:
    """Holds the credentials of a client, if it has any.

    Without them it is trusted, as all programs of its Ray are. The controller looks at them, as the door of
    HTTP does, each time that a handle is opened.
    """

    def __init__(self, authentication: Authentication | None) -> None:
        self._shown = None if authentication is None else _header_of(authentication.auth)

    def check_may_produce(self, cluster: Cluster, topic: str, timeout_s: float) -> None:
        """Raise AuthenticationError, and AuthorizationError for what the role may not."""
        self._check(cluster, Right.PRODUCE, TopicName.parse(topic).full, "", timeout_s)

    def check_may_consume(
        self, cluster: Cluster, options: ConsumerOptions, subscription: str, timeout_s: float
    ) -> None:
        """Raise as `check_may_produce`.

        A pattern needs the right for its whole namespace, and a reader that for the topic.
        """
        if self._shown is None:
            return
        if isinstance(options.topic, re.Pattern):
            subjects = [TopicPattern.of(options).namespace]
        else:
            topics = [options.topic] if isinstance(options.topic, str) else options.topic
            subjects = [TopicName.parse(topic).full for topic in topics]
        for subject in subjects:
            self._check(cluster, Right.CONSUME, subject, subscription, timeout_s)

    def _check(
        self, cluster: Cluster, right: Right, subject: str, subscription: str, timeout_s: float
    ) -> None:
        if self._shown is not None:
            shown = self._shown()
            cluster.controller("authorize", shown, right.value, subject, subscription, timeout_s=timeout_s)


def _header_of(auth: tuple[Any, ...]) -> Callable[[], str]:
    """Return a call for the header of HTTP, or for proof; the call raises AuthenticationError."""
    kind, *values = auth
    if kind == "basic":
        if len(values) == 1:
            fields = json.loads(values[0])
            values = [fields.get("username", ""), fields.get("password", "")]
        return partial(basic_header, values[0], values[1])
    if kind == "tls":
        return lambda: f"{SCHEME} {proof(values[0], values[1], time.time())}"
    given = ClientCredentials(values[0]).token if kind == "oauth2" else partial(_token, values[0])
    return lambda: f"Bearer {given()}"


def _token(token: Any) -> str:
    if isinstance(token, str):
        return token
    try:
        given = token()
    except Exception as error:
        raise AuthenticationError(f"the function that gives the token raised {error!r}") from error
    if not isinstance(given, str):
        raise AuthenticationError(f"the function that gives the token returned {given!r:.100}: return a str")
    return given
