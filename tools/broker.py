"""`streamsx broker`: runs the embedded broker, which speaks Kafka's protocol.

The first line on stdout is `ready HOST:PORT`; the log goes to stderr. The broker's own modules are
imported only after the options have been checked.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from streamsx.config import positive, seconds, size_bytes, whole
from streamsx.tools.cli.command import INTERRUPTED, Command, port, value

DATA = "streamsx-broker"

at_least_1 = value(whole(1))
duration = value(positive(seconds))
size = value(positive(size_bytes))
LIMITS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "connections_max": ("connections; the next one is closed (512)", at_least_1),
    "connections_max_idle_s": ("how long a connection may be idle (10m)", duration),
    "frame_bytes_max": ("size of a request (32MiB)", size),
    "queued_requests_max": ("requests of a connection that wait to be served (64)", at_least_1),
    "queued_bytes_max": ("size of these requests together (32MiB)", size),
    "in_flight_bytes_max": ("size of all requests that are not answered yet (64MiB)", size),
    "unsent_bytes_max": (
        "answers that a client does not read; beyond it the client must read first (8MiB)",
        size,
    ),
    "unsent_by_all_bytes_max": (
        "unread answers of all clients; beyond it the slowest client is closed (32MiB)",
        size,
    ),
    "partitions_max": ("partitions of all topics together (10000)", at_least_1),
}


EXAMPLES = """\
examples:
  streamsx broker                                  at localhost:9092, data in ./streamsx-broker
  streamsx broker --port 0 --topic orders:4        prints the port that it took"""


def main() -> None:
    """Run the command: serve until SIGTERM, then flush everything to the disk and exit with 0."""
    purpose = "Run the embedded broker. It speaks Kafka's protocol; nothing has to be installed."
    command = Command("broker", purpose, epilog=EXAMPLES)
    add = command.add_argument
    add(
        "--data",
        type=Path,
        default=DATA,
        metavar="DIR",
        help=f"the directory of its data (./{DATA})",
    )
    add("--host", default="127.0.0.1", help="the address to listen at (127.0.0.1)")
    add("--port", type=port, default=9092, help="its port; 0 picks a free one (9092)")
    add(
        "--topic", type=topic, action="append", default=[], metavar="NAME:PARTITIONS",
        help="create this topic if it does not exist; may be repeated",
    )  # fmt: skip
    add(
        "--partitions", type=at_least_1, default=1,
        help="partitions of a topic that is created without a number (1)",
    )  # fmt: skip
    add(
        "--no-auto-create", action="store_true",
        help="do not create topics because a client asks for them",
    )  # fmt: skip
    add(
        "--sync",
        action="store_true",
        help="acknowledge a record when it is on the disk (when the system has it)",
    )
    add("--allow-remote", action="store_true", help="serve other machines than this one")
    access = command.add_argument_group("access")
    add = access.add_argument
    add("--tls-cert", type=Path, metavar="FILE", help="serve TLS with this certificate chain (PEM)")
    add("--tls-key", type=Path, metavar="FILE", help="the key, if it is not in --tls-cert")
    add(
        "--sasl-users", type=Path, metavar="FILE",
        help="let in only these users, by SASL PLAIN or SCRAM: lines name:password",
    )  # fmt: skip
    add(
        "--advertise", type=address, metavar="HOST:PORT",
        help="the address that clients are told to connect to (that which they used)",
    )  # fmt: skip
    limits = command.add_argument_group("limits")
    for name, (what, kind) in LIMITS.items():
        flag = "--" + name.removesuffix("_s").replace("_", "-")
        limits.add_argument(flag, type=kind, dest=name, metavar="N", help=what)
    command.run(serve)


def topic(text: str) -> tuple[str, int]:
    """Parse NAME:PARTITIONS. The broker itself decides which topic names are valid.

    Raises:
        argparse.ArgumentTypeError: the text has another form.
    """
    name, _, partitions = text.rpartition(":")
    if not name or not partitions.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME:PARTITIONS, as orders:4")
    return name, int(partitions)


def address(text: str) -> tuple[str, int]:
    """Parse HOST:PORT.

    Raises:
        argparse.ArgumentTypeError: the text has another form.
    """
    host, _, number = text.rpartition(":")
    good = number.isdecimal() and 0 < int(number) < 1 << 16
    if not host or not good or set("/, ") & set(host):  # a URL, or several addresses
        raise argparse.ArgumentTypeError(f"{text!r}: write HOST:PORT, as broker.lan:9092")
    return host.strip("[]"), int(number)


def serve(options: argparse.Namespace) -> int:
    """Run the broker until a signal arrives.

    Returns:
        Exit code: 0 after SIGTERM, 130 after SIGINT from the keyboard.

    Raises:
        UsageError: `--tls-key` stands without `--tls-cert`, or a topic is given twice.
    """
    import asyncio
    import signal

    from streamsx.broker.net.access import Access, read_users, tls_context
    from streamsx.broker.net.client_connection import ConnectionLimits
    from streamsx.broker.net.server import BrokerServer
    from streamsx.broker.options import Options
    from streamsx.errors import UsageError
    from streamsx.event_loops import run
    from streamsx.state.disk import raise_descriptor_limit
    from streamsx.tools.cli.logs import set_up

    set_up("info", "text")
    raise_descriptor_limit()
    if options.tls_key and not options.tls_cert:
        raise UsageError("--tls-key without --tls-cert: give the chain too")
    names = [name for name, _ in options.topic]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"--topic {twice[0]} is given twice: say once how many partitions")
    access = Access(
        tls_context(options.tls_cert, options.tls_key) if options.tls_cert else None,
        read_users(options.sasl_users) if options.sasl_users else None,
        options.advertise,
    )
    given = {name: value for name in LIMITS if (value := getattr(options, name)) is not None}
    broker = BrokerServer(
        options.data,
        host=options.host,
        port=options.port,
        topics=dict(options.topic),
        options=Options(options.sync, not options.no_auto_create, options.partitions),
        limits=ConnectionLimits(**given),
        allow_remote=options.allow_remote,
        access=access,
    )

    async def until_told() -> int:
        loop = asyncio.get_running_loop()
        codes = asyncio.Queue[int]()
        loop.add_signal_handler(signal.SIGTERM, codes.put_nowait, 0)
        loop.add_signal_handler(signal.SIGINT, codes.put_nowait, INTERRUPTED)
        async with broker:
            print(f"ready {broker.bootstrap}", flush=True)
            return await codes.get()

    return run(until_told(), serves=True)
