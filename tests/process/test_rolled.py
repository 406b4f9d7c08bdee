"""Rolling upgrades from an older version to this one, and back, while records flow."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.process.conftest import code_of
from tests.support.apache_kafka import ApacheKafka
from tests.support.embedded_broker import EmbeddedBroker
from tests.support.wordcount import WordCount
from tests.support.workers import Workers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
LINES_PER_S = 300


class Old(NamedTuple):
    """Older version, by its commit."""

    commit: str
    between: str
    """What its `group_by` calls the topic."""
    settings: dict[str, object]
    """What the new version needs to call it so."""
    back: bool = False
    """The group goes back to the older version, too."""


OLDER = (
    # before the world was simulated
    Old(
        "833c08b",
        "grouped.count-{app}-lines-start-repartition",
        {"repartition_names": "faust"},
    ),
    # before a source's operators were a tree
    Old("b7ad920", "{app}-grouped.count-{app}-lines-start-repartition", {}),
    # before standbys, eager members and what else rebalances had to have
    Old("1273d67", "{app}-grouped.count-{app}-lines-start-repartition", {}),
    # before each reader had a position of its own, and topics their ids beside offsets
    Old("1907b18", "{app}-grouped.count-{app}-lines-start-repartition", {}, back=True),
    # before modules were cut by concern, and before flows
    Old("341ca65", "{app}-grouped.count-{app}-lines-start-repartition", {}, back=True),
)


@pytest.fixture(scope="module", params=OLDER, ids=[old.commit for old in OLDER])
def older(request: pytest.FixtureRequest) -> Old:
    old: Old = request.param
    return old


@pytest.fixture(scope="module")
def old_code(older: Old, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the code of the old commit."""
    return code_of(older.commit, tmp_path_factory.mktemp("old"))


class Rolled(NamedTuple):
    """App with workers of both versions, which share the state directories."""

    app: WordCount
    old: Workers
    new: Workers
    settings: dict[str, object]
    """Of the new ones alone."""


GROUPED = """
import os
import streamsx

name = os.environ["WORDCOUNT_NAME"]
app = streamsx.App(name)
lines = app.topic(f"{name}-lines", value_type=str, value_serializer="raw")
counts = app.Table("counts", default=int, key_type=str, value_type=int)

@app.agent(lines)
async def count(stream):
    async for line in stream.group_by(lambda line: line[:9], name="start"):
        counts[line[:9]] += 1
"""


@pytest.fixture(params=["explicit", "grouped"])
def rolled(
    request: pytest.FixtureRequest,
    broker: EmbeddedBroker | ApacheKafka,
    tmp_path: Path,
    older: Old,
    old_code: Path,
) -> Iterator[Rolled]:
    """Return an app whose topics all have names of its own, or one that groups and so has a
    repartition topic, whose name has changed since.
    """
    folder = tmp_path / "workers"
    folder.mkdir()
    settings: dict[str, object] = {}
    if request.param == "grouped":
        (folder / "grouped.py").write_text(GROUPED)
        module, settings = "grouped", older.settings
        app = WordCount(broker.bootstrap, between=older.between, words_of=lambda line: [line[:9]])
    else:
        module, app = "streamsx.examples.wordcount", WordCount(broker.bootstrap)
    env = {
        "STREAMSX_HEARTBEAT_INTERVAL": "500ms", "STREAMSX_COMMIT_INTERVAL": "400ms", **app.env,
    }  # fmt: skip
    before = {**env, "PYTHONPATH": str(old_code)}
    with (
        app,
        Workers(broker.bootstrap, folder, app=module, env=before) as old,
        Workers(broker.bootstrap, folder, app=module, env=env) as new,
    ):
        yield Rolled(app, old, new, settings)


def test_group_of_an_older_version_is_upgraded_one_worker_at_a_time(
    rolled: Rolled, older: Old
) -> None:
    app, old, new, settings = rolled

    def settled() -> bool:
        tasks = [t for group in (old, new) for some in group.active().values() for t in some]
        return len(tasks) == len(set(tasks)) == 2 * app.partitions

    app.feed(LINES_PER_S)
    old.start("a", "b", "c")
    for name in ("a", "b", "c"):
        old.until_event("commit", of=name, count=3)
    for name in ("a", "b", "c"):
        old.until(settled, "all tasks run")
        assert old.stop(name) == [0], old.log(name)
        began = new.now()
        new.start(name, **settings)
        new.until_event("commit", of=name, since=began, count=3)
    new.until(settled, "all tasks run")
    last = new
    if older.back:
        last = old
        for name in ("a", "b", "c"):
            assert new.stop(name) == [0], new.log(name)
            began = old.now()
            old.start(name)
            old.until_event("commit", of=name, since=began, count=3)
            old.until(settled, "all tasks run")
    app.enough()
    last.until(lambda: app.drained, "drained")

    assert app.counts() == app.words
    assert not new.events("lost", "error")
    assert last.stop("a", "b", "c") == [0, 0, 0]
