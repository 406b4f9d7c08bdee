"""What the commands that ask a cluster have in common: which one, and which app of it.

No app is imported for them: its id is enough, so they run where its code is not.
"""

import argparse
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from streamsx.tools.cli.command import Command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from random import Random

    from streamsx.kafka.cluster import Cluster


def group_options(command: Command) -> None:
    command.add_argument(
        "--app", required=True, metavar="ID", help="the id of the app, as in App('ID')"
    )
    cluster_options(command)


def cluster_options(command: Command) -> None:
    add = command.add_argument
    add(
        "--bootstrap", metavar="HOST:PORT[,HOST:PORT]",
        help="the brokers ($STREAMSX_BOOTSTRAP, else localhost:9092)",
    )  # fmt: skip
    add("--json", action="store_true", help="the last line is one JSON object, the rest on stderr")


@asynccontextmanager
async def connected(
    options: argparse.Namespace, rng: "Random | None" = None
) -> "AsyncIterator[Cluster]":
    """Raises BrokerUnreachable after 10 s, SettingError. `rng`: which broker is asked first."""
    from streamsx.app.settings import settled
    from streamsx.kafka.cluster import Cluster

    given = {"bootstrap": options.bootstrap} if options.bootstrap else {}
    config = settled(getattr(options, "app", "streamsx"), {}, given, os.environ).config
    cluster = Cluster(",".join(config.bootstrap), rng=rng)
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()
