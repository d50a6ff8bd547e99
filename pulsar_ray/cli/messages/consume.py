"""`pulsar-ray consume`: messages to lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pulsar_ray.cli.console import Interrupt, interrupted, say, write_messages
from pulsar_ray.cli.messages.whole_files import write_whole
from pulsar_ray.cli.target import WAITING, Target, pass_target
from pulsar_ray.cli.watching.progress import Unit, progress
from pulsar_ray.client.received.message_json import message_json, value_line
from pulsar_ray.model.enums import ConsumerType, InitialPosition

if TYPE_CHECKING:
    from pulsar_ray.client.consumer.consumer import Consumer
    from pulsar_ray.client.received.message import Message

TYPES = {
    "exclusive": ConsumerType.Exclusive,
    "shared": ConsumerType.Shared,
    "failover": ConsumerType.Failover,
    "key_shared": ConsumerType.KeyShared,
}
POSITIONS = {"earliest": InitialPosition.Earliest, "latest": InitialPosition.Latest}


@click.command()
@click.argument("topic")
@click.option("-s", "--subscription", required=True, help="Created if it does not exist.")
@click.option(
    "--from",
    "start",
    type=click.Choice(list(POSITIONS)),
    default="earliest",
    show_default=True,
    help="Where a new subscription starts; one that exists goes on where it was.",
)
@click.option("-n", "--count", type=click.IntRange(min=1), help="Stop after so many messages.")
@click.option(
    "--follow/--no-follow", default=True, show_default=True, help="Wait for more, or stop at the end."
)
@click.option(
    "--type",
    "kind",
    type=click.Choice(list(TYPES)),
    default="exclusive",
    show_default=True,
    help="How the subscription divides messages among its consumers.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per message, with all its fields.")
@click.option(
    "--into",
    metavar="FILE",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="Write one message into a new FILE as it is, and stop.",
)
@click.option("--key-separator", metavar="TEXT", help="Print each key and this before the value.")
@pass_target
def consume(
    target: Target,
    topic: str,
    subscription: str,
    start: str,
    count: int | None,
    follow: bool,
    kind: str,
    as_json: bool,
    into: str | None,
    key_separator: str | None,
) -> None:
    """Print the messages of a subscription, and acknowledge them once they are printed.

    Values of a topic with a schema are printed as JSON.
    A terminal shows signs that would steer it escaped; a file or pipe gets every byte as it is.

    \b
    Examples:
      pulsar-ray consume orders -s audit
      pulsar-ray consume orders -s audit --no-follow --json | jq .value
      pulsar-ray consume orders -s workers --type shared -n 10
      pulsar-ray consume orders -s keyed --type key_shared
      pulsar-ray consume scans -s archive --into image.tiff
    """
    if as_json and key_separator is not None:
        raise click.UsageError("--json shows keys already: leave --key-separator out")
    if into is not None:
        _check_into(into, count, as_json=as_json, key_separator=key_separator)
        count = 1
    text = message_json if as_json else _plain(key_separator)
    done = 0
    from pulsar_ray.schema.auto import AutoSchema  # noqa: PLC0415 - it loads the client

    with ExitStack() as stack:
        client = stack.enter_context(target.client())
        try:
            with progress(WAITING):
                consumer = client.subscribe(
                    topic,
                    subscription,
                    TYPES[kind],
                    schema=AutoSchema(),
                    initial_position=POSITIONS[start],
                    # One for a file may be large, and so may those behind it.
                    receiver_queue_size=1000 if into is None else 1,
                )
            # On a terminal the messages themselves show how far it is.
            counted = nullcontext() if sys.stdout.isatty() else progress("received", count, Unit.ITEMS)
            with Interrupt() as interrupt, counted as shown:
                for messages in _batches(consumer, count, follow, interrupt):
                    if into is None:
                        _write(messages, text)
                    else:
                        write_whole(messages[0].data(), into)
                    consumer.acknowledge(messages)
                    done += len(messages)
                    if shown is not None:
                        shown.reached(done)
        except KeyboardInterrupt:
            # Closing makes the acknowledgments durable.
            stack.close()
            interrupted(f"{done:,} messages acknowledged")
    if into is not None and not done:
        raise click.ClickException(f"no message is waiting in {topic}: {into} was not written")
    if sys.stderr.isatty():
        say(f"{done:,} messages acknowledged")


def _check_into(into: str, count: int | None, *, as_json: bool, key_separator: str | None) -> None:
    if as_json or key_separator is not None:
        raise click.UsageError("--into writes a message as it is: leave --json and --key-separator out")
    if count not in (None, 1):
        raise click.UsageError("--into writes one message: leave --count out")
    if into == "-" and sys.stdout.isatty():
        raise click.UsageError("--into - writes a message as it is, which is not for a terminal: name a file")
    if into != "-" and Path(into).exists():
        raise click.UsageError(f"{into} exists: name a new file")


def _batches(
    consumer: Consumer, count: int | None, follow: bool, interrupt: Interrupt
) -> Iterator[Sequence[Message]]:
    """Messages as they come, `count` in all, or until the end of what is stored."""
    left = count
    while left is None or left > 0:
        interrupt.check()
        messages: Sequence[Message] = consumer.batch_receive()
        if left is not None and left < len(messages):
            messages = messages[:left]
        if messages:
            left = None if left is None else left - len(messages)
            yield messages
        elif not follow and not consumer.has_message_available():
            return


def _write(messages: Sequence[Message], text: Callable[[Message], bytes]) -> None:
    """Print whole lines and see them leave: what is acknowledged next does not come again."""
    write_messages(b"".join([text(message) for message in messages]))


def _plain(key_separator: str | None) -> Callable[[Message], bytes]:
    if key_separator is None:
        return lambda message: value_line(message) + b"\n"
    separator = key_separator.encode()
    return lambda message: message.partition_key().encode() + separator + value_line(message) + b"\n"
