"""What the commands that ask a cluster have in common: which one, as whom, and which app of it.

No app has to be imported for them: its id is enough, so they run where its code is not. Who has
the code says `-A MODULE`, and what the app sets counts as it does for a worker.
"""

import argparse
import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from streamsx.config import SETTINGS
from streamsx.tools.cli.command import Command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from random import Random

    from streamsx.client.cluster import Cluster
    from streamsx.clock import Clock

    AskWork = Callable[[argparse.Namespace, Clock], Coroutine[None, None, int | None]]


class ClusterCommand(Command):
    """One that asks a cluster; most do so for an app."""

    def __init__(self, name: str, purpose: str) -> None:
        super().__init__(name, purpose)
        add = self.add_argument
        self._app = self.add_mutually_exclusive_group()
        self._app.add_argument(
            "-A", dest="module", metavar="MODULE[:ATTR]",
            help="the app, as in an import: its id, brokers and credentials",
        )  # fmt: skip
        add(
            "--bootstrap", metavar="HOST:PORT[,HOST:PORT]",
            help="the brokers ($STREAMSX_BOOTSTRAP, the app's, else localhost:9092)",
        )  # fmt: skip
        add(
            "--command-config", type=Path, metavar="FILE",
            help="security settings, as Kafka's own tools read them",
        )  # fmt: skip
        self.add_json()

    def add_app(self, *, required: bool) -> None:
        """By its id, where its code is not."""
        self._app.add_argument("--app", metavar="ID", help="the id of the app, as in App('ID')")
        self._app.required = required

    def ask(self, work: "AskWork") -> NoReturn:
        """As `run`, on an event loop; `app`, `bootstrap` and `security` as they count."""

        def asked(options: argparse.Namespace) -> int | None:
            from streamsx.clock import SystemClock
            from streamsx.event_loops import run

            return run(work(settle(options), SystemClock()))

        self.run(asked)


def settle(options: argparse.Namespace) -> argparse.Namespace:
    """The command line counts most, then its file, the environment, the app. Without an app only
    the address is looked at: what else the environment says is for workers. Raises UsageError.
    """
    from streamsx.app.lookup import app_named
    from streamsx.app.settings import PREFIX, resolve_config
    from streamsx.client.security import security_of
    from streamsx.tools.cli.properties import properties, security_in

    found = properties(options.command_config) if options.command_config else {}
    bootstrap = options.bootstrap or found.get("bootstrap")
    given = {"bootstrap": bootstrap} if bootstrap else {}
    if options.module:
        app = app_named(options.module)
        app.override(**given)
        config = app.conf
        options.app = config.id
    else:
        address = SETTINGS["bootstrap"]
        names = {f"{PREFIX}{n}".upper() for n, known in SETTINGS.items() if known is address}
        named = os.environ.keys() & {address.metadata["env"], *names}
        config = resolve_config(
            "streamsx", {}, given, {name: os.environ[name] for name in named}
        ).config
    options.bootstrap = ",".join(config.bootstrap)
    options.security = (
        security_in(found)
        if found.keys() - {"bootstrap"}
        else security_of(config.broker_credentials, config.ssl_context)
    )
    return options


@asynccontextmanager
async def connected(
    options: argparse.Namespace, rng: "Random | None" = None
) -> "AsyncIterator[Cluster]":
    """To their `bootstrap`, by their `security`. Raises BrokerUnreachable after 10 s, SettingError.
    `rng`: which broker is asked first.
    """
    from streamsx.client.cluster import Cluster

    cluster = Cluster(options.bootstrap, options.security, rng=rng)
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()
