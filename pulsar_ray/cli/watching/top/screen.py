"""Draws the view as lines of text for a terminal of a given size. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import set_cell_size
from rich.text import Text

from pulsar_ray.broker.serving.logs.log_lines import one_line
from pulsar_ray.cli.watching.top.columns import Column, Row, View, name_of, shown_columns, sorted_rows
from pulsar_ray.cli.watching.top.state import TopState
from pulsar_ray.model.short_numbers import age, count, size

LEAST_FLEXIBLE = 10
"""Characters that a column of names gets at least."""
MAX_HASHES = 6
HEAD_LINES = 4
"""Lines above the rows: broker, totals, place, titles."""
REMOTE_LAG_S = 5.0
"""From here on what is not in the object store is shown in yellow."""
KEYS = {
    View.TOPICS: "q quit  enter open  s/S sort  r reverse  / filter  p pause  ? help",
    View.SUBSCRIPTIONS: "q quit  enter open  esc back  s/S sort  r reverse  p pause  ? help",
    View.CONSUMERS: "q quit  esc back  s/S sort  r reverse  p pause  ? help",
}
HELP = """\
up down  j k           select a row               enter  right   open it
page up, page down     a screen further           esc  left      go back
home end  g G          first, last row            q  Ctrl-C      quit
s S                    sort by the next, the former column; r reverses
/                      show topics whose name contains a text; esc takes it back
p  space               pause: the figures stay as they are

AGE is that of the oldest message that a subscription has not acknowledged,
UNACK what consumers hold without having acknowledged it, BACKLOG counts
entries of the largest subscription's backlog, of which a batch is one.
Topics that sleep are not woken. Rates are means of the last seconds.

Any key closes this."""


@dataclass(frozen=True)
class Figures:
    """The newest answer of the broker, and how old it is.

    `problem` says why no newer one is there; `answer` is empty before the first one.
    """

    answer: Mapping[str, Any]
    age_s: float = 0.0
    problem: str = ""


def table_rows(state: TopState, answer: Mapping[str, Any]) -> list[Row]:
    """The rows of the table that is shown, in their order."""
    view = state.view
    if view is View.TOPICS:
        found: Sequence[Row] = answer.get("overview", {}).get("topics", ())
    else:
        found = answer.get(view.value, ())
        if answer.get("topic") != state.topic or answer.get("subscription", "") != state.subscription:
            found = ()
    return sorted_rows(view, found, state.sort[view], is_reversed=state.is_reversed.get(view, False))


def row_names(state: TopState, answer: Mapping[str, Any]) -> list[str]:
    """The names of these rows."""
    return [name_of(state.view, row) for row in table_rows(state, answer)]


def rows_that_fit(state: TopState, answer: Mapping[str, Any], height: int) -> int:
    """How many rows have room in a terminal of this height."""
    return max(height - HEAD_LINES - 1 - len(_below(state, answer)), 1)


def draw(state: TopState, figures: Figures, width: int, height: int) -> Text:
    """Draw the view, at most `height` lines of `width` cells."""
    answer = figures.answer
    lines = [_broker_line(state, figures, width), *_totals(answer, width), _place_line(state, answer, width)]
    if state.shows_help:
        lines += [Text(line) for line in HELP.splitlines()]
    else:
        lines += _table(state, answer, width, rows_that_fit(state, answer, height))
        lines += [Text()] * (height - 1 - len(lines) - len(_below(state, answer)))
        lines += _below(state, answer)
    lines = lines[: max(height - 1, 0)]
    lines += [Text()] * (height - 1 - len(lines))
    lines.append(_foot(state, answer, width))
    for line in lines:
        line.truncate(width)
    return Text("\n", no_wrap=True, end="").join(lines)


def _broker_line(state: TopState, figures: Figures, width: int) -> Text:
    line = Text("pulsar-ray top", style="bold")
    if figures.problem:
        since = f", figures of {age(figures.age_s)} ago" if figures.answer else ""
        return line.append(f"  {one_line(figures.problem)}{since}", style="bold red")
    if not figures.answer:
        return line.append("  connecting ...", style="yellow")
    if state.is_paused:
        return line.append(f"  paused, figures of {age(figures.age_s)} ago", style="yellow")
    overview = figures.answer["overview"]
    away = overview.get("partitionsAway", 0)
    stores = overview["stores"]
    line.append(f"  {one_line(stores[0]['path'])}" if len(stores) == 1 else f"  {len(stores)} stores")
    if away:
        line.append(f"  {away} partitions away", style="bold red")
    if moving := overview.get("partitionsMoving", 0):
        line.append(f"  {moving} partitions moving", style="yellow")
    if restarts := overview.get("restarts", 0):
        line.append(f"  {restarts:,.0f} restarts", style="yellow")
    return line


def _totals(answer: Mapping[str, Any], width: int) -> list[Text]:
    overview = answer.get("overview")
    if not overview:
        return [Text()]
    counts = overview["counts"]
    line = Text(
        f"topics {counts['running']:,} running, {counts['sleeping']:,} asleep  "
        f"in {count(overview['msgRateIn'])}/s  out {count(overview['msgRateOut'])}/s"
    )
    for store in overview["stores"]:
        line.append("  ")
        if store.get("error"):
            line.append(f"{one_line(store.get('host', ''))}: {one_line(store['error'])}", style="bold red")
            continue
        used = 100 - 100 * store["freeBytes"] / max(store["totalBytes"], 1)
        style = {"ok": "", "warning": "yellow"}.get(store.get("diskState", "ok"), "bold red")
        word = " LOW" if store.get("diskState") == "low" else ""
        line.append(f"disk {used:.0f}%{word} ({size(store['freeBytes'])} free)", style=style)
        if "remoteLagSeconds" in store:
            lag_s = store["remoteLagSeconds"]
            is_behind = lag_s is None or lag_s >= REMOTE_LAG_S
            text = "does not ship" if lag_s is None else f"remote lag {lag_s:.1f} s"
            line.append(f"  {text}", style="yellow" if is_behind else "")
    return [line]


def _place_line(state: TopState, answer: Mapping[str, Any], width: int) -> Text:
    line = Text(style="cyan")
    if state.view is View.TOPICS:
        if state.filter or state.is_typing:
            line.append(f"filter: {one_line(state.filter)}")
            line.append("_" if state.is_typing else "")
        elif hidden := answer.get("overview", {}).get("topicsNotShown", 0):
            line.append(
                f"the first {len(answer['overview']['topics']):,}; {hidden:,} more: use / to find one"
            )
        return line
    line.append(one_line(state.topic))
    if state.subscription:
        line.append(f" -> {one_line(state.subscription)}")
    if problem := answer.get("missing"):
        line.append(f"  {one_line(problem)}", style="bold red")
    elif state.subscription and (reason := answer.get("reason")):
        line.append(f"  {one_line(reason)}", style="yellow")
    elif topic_problem := answer.get("topicProblem"):
        line.append(f"  {one_line(topic_problem)}", style="bold red")
    return line


def _table(state: TopState, answer: Mapping[str, Any], width: int, room: int) -> list[Text]:
    view = state.view
    columns = shown_columns(view, width)
    widths = _widths(columns, width)
    sort = state.sort[view]
    titles = [column.title + ("*" if column.name == sort else "") for column in columns]
    lines = [Text(_line(columns, widths, titles), style="bold underline")]
    rows = table_rows(state, answer)
    at, first = state.place([name_of(view, row) for row in rows], room)
    for index, row in enumerate(rows[first : first + room], first):
        text = Text(_line(columns, widths, [column.text(row) for column in columns]))
        text.stylize(_style(view, row))
        if index == at:
            text.stylize("reverse")
        lines.append(text)
    return lines


def _style(view: View, row: Row) -> str:
    if row.get("problem") or row.get("blocked"):
        return "red"
    return "dim" if view is View.TOPICS and row.get("state") == "asleep" else ""


def _widths(columns: Sequence[Column], width: int) -> list[int]:
    fixed = sum(column.width for column in columns) + len(columns) - 1
    flexible = sum(not column.width for column in columns)
    each = max((width - fixed) // max(flexible, 1), LEAST_FLEXIBLE)
    widths = [column.width or each for column in columns]
    # The first column gets what is left over by the division.
    widths[0] += max(width - sum(widths) - len(columns) + 1, 0)
    return widths


def _line(columns: Sequence[Column], widths: Sequence[int], texts: Sequence[str]) -> str:
    cells = []
    for column, width, text in zip(columns, widths, texts, strict=True):
        if column.is_number:
            cells.append(text.rjust(width)[:width])
        else:
            shown = text if len(text) <= width else text[: width - 1] + "~"
            cells.append(set_cell_size(shown, width))
    return " ".join(cells)


def _below(state: TopState, answer: Mapping[str, Any]) -> list[Text]:
    """Under the consumers of a Key_Shared subscription: the hashes whose messages wait."""
    hashes = answer.get("hashes", ()) if state.view is View.CONSUMERS else ()
    if not hashes or answer.get("subscription") != state.subscription:
        return []
    lines = [Text("BLOCKED HASH  WAITING  SINCE  WHY", style="bold underline")]
    for one in hashes[:MAX_HASHES]:
        since = age(one["blockedMs"] / 1000)
        reason = one_line(one["reason"])
        lines.append(
            Text(f"{one['hash']:>12}  {one['waitingMessages']:>7}  {since:>5}  {reason}", style="red")
        )
    if len(hashes) > MAX_HASHES or answer.get("hashesNotShown"):
        more = max(len(hashes) - MAX_HASHES, 0) + answer.get("hashesNotShown", 0)
        lines.append(Text(f"... and {more:,} more: pulsar-ray topics why-blocked", style="dim"))
    return lines


def _foot(state: TopState, answer: Mapping[str, Any], width: int) -> Text:
    if state.is_typing:
        return Text("enter: keep the filter   esc: take it back", style="reverse")
    rows = table_rows(state, answer)
    if state.view is View.TOPICS and rows and width < 130:
        at = state.selected_at([name_of(state.view, row) for row in rows])
        if problem := rows[at].get("problem"):
            return Text(one_line(str(problem)), style="red")
    return Text(KEYS[state.view], style="dim")
