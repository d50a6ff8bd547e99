"""One line of the broker's log, as text or as JSON.

Text is `time level component node=... topic=... subscription=... pid=...: message`, the same words in each
line and `-` for those that do not apply, so that both a reader and `grep` find their way. Names and messages
come from users: what cannot be printed is escaped, and a name with blanks is quoted, so that nobody can forge
a line.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TEXT = "text"
JSON = "json"


@dataclass(frozen=True, slots=True)
class LogContext:
    """The part of the broker that a process is, for its lines."""

    component: str
    """controller, store, partition, dispatcher, tracker or standalone."""
    host: str
    node: str = ""
    """The first eight signs of Ray's id of the node."""
    topic: str = ""
    subscription: str = ""


def one_line(text: str) -> str:
    """Escape line ends and other signs that are not to be printed."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def json_line(fields: Mapping[str, Any]) -> str:
    """Write JSON in one line, with signs that are not to be printed escaped.

    Of those `json` leaves many as they are.
    """
    line = json.dumps(fields, ensure_ascii=False)
    if line.isprintable():
        return line
    return "".join(sign if sign.isprintable() else json.dumps(sign)[1:-1] for sign in line)


def about(*, topic: str = "", subscription: str = "") -> dict[str, str]:
    """Name the topic of a line, as the `extra` of a logging call."""
    given = {"topic": topic, "subscription": subscription}
    return {f"about_{field}": name for field, name in given.items() if name}


class LineFormatter(logging.Formatter):
    """Formats records; a traceback follows a text line, and is a field of JSON."""

    def __init__(self, context: LogContext, form: str) -> None:
        super().__init__()
        self._context = context
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        fields = self._fields(record)
        if self._form == JSON:
            return json_line(fields)
        node = f"{fields['host']}/{fields['node']}" if fields["node"] else fields["host"]
        line = (
            f"{fields['time']} {fields['level']} {fields['component']} node={_word(node)} "
            f"topic={_word(fields['topic'])} subscription={_word(fields['subscription'])} "
            f"pid={fields['pid']}: {one_line(fields['message'])}"
        )
        if "exception" not in fields:
            return line
        # Indented, for the error's text may have come from a user and look like a line of the log.
        traceback = (f"  {one_line(each)}" for each in fields["exception"].split("\n"))
        return "\n".join((line, *traceback))

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        context = self._context
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "component": context.component,
            "host": context.host,
            "node": context.node or None,
            "topic": getattr(record, "about_topic", context.topic) or None,
            "subscription": getattr(record, "about_subscription", context.subscription) or None,
            "pid": record.process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return fields


def _word(name: str | None) -> str:
    """A name as one word, quoted where it would not be one."""
    if not name:
        return "-"
    is_plain = name.isprintable() and name != "-" and not any(sign in name for sign in ' "=\\')
    return name if is_plain else json.dumps(name, ensure_ascii=not name.isprintable())
