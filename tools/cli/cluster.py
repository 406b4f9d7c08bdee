"""Options of the commands that ask a cluster: its address, the credentials, and the app.

These commands need not import the app. The id of the app is enough, so they run on hosts without
the code of the app. With the code, `-A MODULE` applies the app's settings as a worker does.
"""

import argparse
import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from streamsx.config import SETTINGS
from streamsx.tools.cli.command import Command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from random import Random

    from streamsx.client.cluster import Cluster
    from streamsx.clock import Clock

    AskWork = Callable[[argparse.Namespace, Clock], Coroutine[None, None, int | None]]


class ClusterCommand(Command):
    """Command that asks a cluster, in most cases about an app. `examples` end its help."""

    def __init__(self, prog: str, description: str, examples: str = "", **more: Any) -> None:
        super().__init__(prog, description, **{"epilog": examples, **more})
        add = self.add_argument
        self._app = self.add_mutually_exclusive_group()
        self._app.add_argument(
            "-A", dest="module", metavar="MODULE[:ATTR]",
            help="the app, as in an import, for its id, brokers and credentials",
        )  # fmt: skip
        add(
            "--bootstrap", metavar="HOST:PORT[,HOST:PORT]",
            help="addresses of brokers ($STREAMSX_BOOTSTRAP, else the app's, else localhost:9092)",
        )  # fmt: skip
        add(
            "--command-config", type=Path, metavar="FILE",
            help="a file of security settings, in the form of Kafka's own tools",
        )  # fmt: skip
        self.add_json()

    def add_app(self, *, required: bool) -> None:
        """Add `--app ID`, for hosts without the code of the app."""
        self._app.add_argument("--app", metavar="ID", help="the id of the app, as in App('ID')")
        self._app.required = required

    def ask(self, work: "AskWork") -> NoReturn:
        """Run `work` as `run` does, on an event loop and with resolved options (see `settle`)."""
        self.run(asked(work))


def asked(work: "AskWork") -> "Callable[[argparse.Namespace], int | None]":
    """Return a function that runs `work` on an event loop and with resolved options."""

    def run_work(options: argparse.Namespace) -> int | None:
        from streamsx.clock import SystemClock
        from streamsx.event_loops import run

        return run(work(settle(options), SystemClock()))

    return run_work


def settle(options: argparse.Namespace) -> argparse.Namespace:
    """Resolve the options `app`, `bootstrap` and `security`; return the same options.

    The command line takes precedence, then its file, the environment, the app. Without an app only
    the address is taken from the environment: all other variables are for workers.

    Raises:
        UsageError: the app or the file is wrong.
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
    """Connect to the cluster of `options.bootstrap` with `options.security`.

    `rng` draws the broker that is asked first.

    Raises:
        BrokerUnreachable: no broker has answered for 10 s.
        SettingError: a setting is wrong.
    """
    from streamsx.client.cluster import Cluster

    cluster = Cluster(options.bootstrap, options.security, rng=rng)
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()
