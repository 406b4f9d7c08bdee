"""A table whose value type has changed: a worker meets the old rows on its disk or in the
changelog.
"""

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from streamsx.model import TopicPartition
from tests.support.client import Client
from tests.support.embedded_broker import EmbeddedBroker
from tests.support.workers import Workers

APP = """
import dataclasses
import streamsx

@dataclasses.dataclass
class Line:
    n: int
{fields}

app = streamsx.App("types")
lines = app.Table("lines", value_type=Line)

@app.agent("in")
async def keep(stream):
    async for n in stream:
        lines["last"] = Line(n{values})
"""
IN = TopicPartition("in", 0)


@pytest.mark.timeout(120)
def test_worker_refuses_a_type_that_does_not_fit_the_stored_rows(tmp_path: Path) -> None:
    def write(fields: str = "", values: str = "") -> None:
        (tmp_path / "typed.py").write_text(APP.format(fields=fields, values=values))

    write()
    with (
        EmbeddedBroker(tmp_path / "broker") as broker,
        Workers(broker.bootstrap, tmp_path, app="typed") as workers,
        closing(Client(broker.bootstrap)) as client,
    ):
        client.create("in", 1)
        workers.start("a", commit_interval="200ms")
        client.send(IN, [(None, b"1")])
        workers.until(lambda: client.committed("types", [IN]) == {IN: 1}, "1 record committed")
        assert workers.stop("a") == [0]

        write("    unit: str", ", 'kg'")
        says = "stored rows do not fit the table's type: table lines, key b'\"last\"': "
        for _ in ("on its disk", "in its changelog"):
            workers.start("a")
            assert workers.code("a") == 2
            assert says in workers.error("a")
            assert "give a field that was added a default" in workers.error("a")
            shutil.rmtree(workers.all["a"].state)
