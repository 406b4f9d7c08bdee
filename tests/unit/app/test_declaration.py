"""Mistakes of an app, reported all at once with file and line when a command imports it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from streamsx.errors import UsageError
from streamsx.mistakes import all_of
from tests.support.command import streamsx

Told = Callable[[str], list[str]]


@pytest.fixture
def told(tmp_path: Path) -> Told:
    """Return the lines of `streamsx topology` about a module, without its folder."""

    def tell(text: str) -> list[str]:
        (tmp_path / "wrong.py").write_text(f"from streamsx import App\n{text}")
        done = streamsx("topology", "wrong", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        return done.stderr.replace(f"{tmp_path}/", "").splitlines()

    return tell


def test_mistakes_of_declarations_are_told_together(told: Told) -> None:
    found = told("""
app = App("shop")
totals = app.Table("totals", default=0)

@app.agent("orders")
def count(stream):
    pass

app.flow("a").join(app.flow("b"), lambda a, b: a)
""")
    assert [line.rpartition(" (")[2] for line in found[:2]] == ["wrong.py:4)", "wrong.py:6)"]
    assert found[0].startswith("error: bad default: default=0: table totals: ")
    assert found[1].startswith("error: not an async function: <function count ")
    assert found[2].startswith("error: join of flows without within= (wrong.py:10): ")
    assert len(found) == 3


def test_mistakes_of_graph_and_declarations_are_reported_together(told: Told) -> None:
    found = told("""
app = App("shop")
wrong = app.topic(3)

@app.agent(app.topic("orders", value_type=type))
async def count(stream):
    async for _ in stream:
        pass
""")
    assert len(found) == 2
    assert found[0].startswith("error: not names of topics: (3,): ")
    assert found[0].endswith("(wrong.py:4)")
    assert "topic orders: unknown type" in found[1]
    assert found[1].endswith("(wrong.py:6)")


def test_mistakes_of_the_graph_have_their_places(told: Told) -> None:
    found = told("""
app = App("shop")
odd = app.Table("odd", store="nope://")
twice = app.topic("t", partitions=2), app.topic("t", partitions=0)

@app.agent("a", tables=["nowhere"])
async def one(stream):
    async for _ in stream:
        pass

@app.agent(app.topic("b", value_type=int))
async def two(stream):
    async for _ in stream:
        pass

@app.agent(app.topic("b", value_type=str))
async def three(stream):
    1 / 0
    async for _ in stream:
        pass
""")
    places = [int(line.partition("wrong.py:")[2].partition(")")[0]) for line in found]
    assert places == [4, 7, 19], "the line of a body that fails"
    assert "unknown store: nope://" in found[0]
    assert "no such table: nowhere" in found[1]
    assert "ZeroDivisionError" in found[2]


def test_bad_settings_are_told_together(told: Told) -> None:
    found = told('app = App("shop", commit_interval="often", partitionz=3)\n')
    assert len(found) == 2
    assert "bad setting: commit_interval (app shop): 'often'" in found[0]
    assert "unknown setting: partitionz (app shop)" in found[1]
    assert all(line.endswith("(wrong.py:2)") for line in found)


def test_declaration_that_needs_a_refused_one_is_left_out(told: Told) -> None:
    found = told("""
app = App("shop")
orders = app.topic(3)

@app.agent(orders)
def count(stream):
    pass

@app.agent(app.topic(4))
def other(stream):
    count.send(value=1)
""")
    assert len(found) == 2
    assert "(3,)" in found[0]
    assert "(4,)" in found[1]


@pytest.mark.parametrize(
    "statement",
    [
        "made = wrong.filter(len).count()",
        "made = wrong['k'], [wrong], {'a': wrong.b.c}",
        "@app.agent(wrong)\nasync def made(stream): 1",
        "@app.agent('a', sink=[wrong])\nasync def made(stream): 1",
        "@app.task\ndef made(): 1\nmade.send(value=1)",
        "@app.task(on_leader=True)\ndef made(): 1",
        "@app.timer('1s')\ndef made(): 1",
        "@app.page('/')\nasync def made(web, request): 1",
        "made = app.flow(wrong).join(app.table('c'), max)",
        "made = app.flow('a').cogroup().merge(wrong)",
        "made = app.Table('t', default=wrong)",
        "made = app.topic('t', config={'retention.ms': wrong}), app.flow('a').branch({'b': wrong})",
        "made = [*wrong], dict(wrong), [part.to('b') for part in app.flow('a').branch(3).values()]",
        "made = streamsx.tumbling(0), streamsx.retry(0), streamsx.Channel()",
        "made = app.Table('w').tumbling(0).relative_to_now()",
        "for name in 'ab':\n    app.topic(name)",
    ],
)
def test_import_goes_on_behind_a_mistake(told: Told, statement: str) -> None:
    found = told(
        f"""
import streamsx
app = App("shop")
wrong = app.topic(3)
{statement}
made
also = app.topic(4)
""".replace("made\nalso", "also" if statement.startswith("for") else "made\nalso")
    )
    assert "(3,)" in found[0]
    assert "(4,)" in found[-1]


@pytest.mark.parametrize("error", ["1 / 0", "first, second = wrong", "exit(0)", "import nowhere"])
def test_error_behind_a_mistake_may_come_of_it_and_is_not_told(told: Told, error: str) -> None:
    (found,) = told(f"app = App('shop')\nwrong = app.topic(3)\n{error}\nx = app.topic(4)\n")
    assert "(3,)" in found


def test_graph_that_cannot_be_made_for_another_reason_hides_no_mistake(told: Told) -> None:
    (found,) = told("""
class Mine(App):
    def topology(self):
        return super().topology().parts

app = Mine("shop")
wrong = app.topic(3)
""")
    assert "(3,)" in found


def test_refusal_that_ends_the_import_is_told_with_those_before(told: Told) -> None:
    found = told("""
app = App("shop", commit_interval="often")
wrong = app.topic(3)
every = app.conf.commit_interval
also = app.topic(4)
""")
    assert len(found) == 2
    assert found[0].endswith("(wrong.py:4)")
    assert "bad setting: commit_interval" in found[1]


def test_body_that_fails_by_a_refused_declaration_is_no_further_mistake(told: Told) -> None:
    (found,) = told("""
app = App("shop")
totals = app.Table("totals", default=0)

@app.agent("orders")
async def count(stream):
    begun = totals["a"] + 1
    async for order in stream:
        totals[order] += 1

@app.agent("more", tables=["totals"])
async def more(stream):
    async for order in stream:
        totals[order] += 1
""")
    assert "bad default" in found


def test_graph_that_uses_a_refused_declaration_comes_to_an_end(told: Told) -> None:
    (found,) = told("""
app = App("shop")
regions = app.Table("regions", dfault=str)

@app.agent("orders")
async def count(orders):
    async for order in orders.group_by(regions.get, name="region"):
        pass
""")
    assert "no such argument: dfault=" in found


@pytest.mark.parametrize(
    "probe",
    [
        "try:\n    t = app.topic('a', more=1)\nexcept TypeError:\n    t = app.topic('a')",
        "def web():\n  try:\n    return app.web\n  except Exception: 0\nassert not web()",
        "def made():\n    return app.topic('a', more=1)\nwith suppress(TypeError):\n    made()",
    ],
)
def test_mistake_that_the_module_catches_is_none(tmp_path: Path, probe: str) -> None:
    (tmp_path / "right.py").write_text(
        "from contextlib import suppress\nfrom streamsx import App\n"
        f"app = App('shop')\n{probe}\napp.flow('a').to('b')\n"
    )
    done = streamsx("topology", "right", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_declaration_within_a_declaration_is_one_mistake(told: Told) -> None:
    (found,) = told("app = App('shop')\nmade = app.flow('a', value_typ=int).count()\n")
    assert "no such argument: value_typ=" in found


def test_declaration_raises_where_no_command_imports_it() -> None:
    from streamsx import App

    with pytest.raises(TypeError, match="not names of topics"):
        App("shop").topic(3)  # type: ignore[arg-type]


def test_command_line_of_an_app_is_not_run_by_its_import(told: Told) -> None:
    (found,) = told("app = App('shop')\napp.main()\n")
    assert found.startswith("error: app.main() in an import: app shop: write it below `if __name")
    assert found.endswith("(wrong.py:3)")


def test_refused_name_of_faust_is_told_too(told: Told) -> None:
    found = told("""
import streamsx
app = App("shop")
wrong = app.topic(3)
made = streamsx.Channel()
""")
    assert len(found) == 2
    assert found[1].startswith("error: not in this version: Channel: ")
    assert found[1].endswith("(wrong.py:6)")


def test_mistakes_of_an_imported_module_are_told_too(told: Told, tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(
        "from streamsx import App\napp = App('shop')\na = app.topic(3)\nb = app.topic(4)\n"
    )
    found = told("from parts import app\nother = App('b')\nc = other.topic(5)\n")
    assert [line.rpartition(" (")[2] for line in found] == [
        "parts.py:3)", "parts.py:4)", "wrong.py:4)",
    ]  # fmt: skip


def test_error_of_other_code_is_one_line_with_its_place(told: Told) -> None:
    (found,) = told("def half():\n    return 1 / 0\nhalf()\n")
    assert found.startswith("error: module cannot be imported: wrong: ZeroDivisionError: ")
    assert found.endswith("(wrong.py:3)")
    (found,) = told("int('x')\n")
    assert found.startswith("error: module cannot be imported: wrong: ValueError: ")
    (found,) = told("def (\n")
    assert found.endswith("(wrong.py:2)")


def test_worker_tells_all_mistakes_too(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(
        "from streamsx import App\napp = App('shop')\na = app.topic(3)\nb = app.topic(4)\n"
    )
    done = streamsx("worker", "wrong", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("error: not names of topics") == 2


def test_driver_raises_all_mistakes_of_the_graph_at_once() -> None:
    from streamsx import App
    from streamsx.testing import TestDriver

    app = App("shop")
    app.topic("a", partitions=0)
    app.topic("b", partitions=0)
    with pytest.raises(UsageError) as raised:
        TestDriver(app)
    assert len(all_of(raised.value)) == 2
    assert str(raised.value).count(f"({__file__}:") == 2


def test_unknown_argument_of_an_agent_names_the_nearest() -> None:
    from streamsx import App

    with pytest.raises(TypeError, match=r"no such argument: sinks=: .*: did you mean sink=\?"):

        @App("shop").agent("a", sinks=[])
        async def body(stream: object) -> None:
            """Do nothing."""


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("@app.agent(app.topic('a'), on_eror='dlq')\nasync def f(s): 1",
         "no such argument: on_eror=: agent wrong.f: did you mean on_error=?"),
        ("@app.agent(on_eror='dlq', name='f')\nasync def f(s): 1",
         "no such argument: on_eror=: agent f: did you mean on_error=?"),
        ("@app.agent(app.topic('a'), partitions=4)\nasync def f(s): 1",
         "for a topic, not for an agent: partitions: wrong.f: give it to app.topic"),
        ("app.Table('t', dfault=int)",
         "no such argument: dfault=: table t: did you mean default=?"),
        ("app.topic('a', 'b', value_typ=int)",
         "no such argument: value_typ=: topic a, b: did you mean value_type=?"),
        ("app.flow('a', value_typ=int)",
         "no such argument: value_typ=: topic a: did you mean value_type=?"),
        ("app.topic('a', x=1)", "no such argument: x=: topic a: there are allow_empty, compacting"),
    ],
)  # fmt: skip
def test_unknown_argument_has_its_place_and_the_nearest_name(
    told: Told, statement: str, says: str
) -> None:
    (found,) = told(f"app = App('shop')\n{statement}\n")
    assert found.startswith(f"error: {says}")
    assert found.endswith("(wrong.py:3)")


def test_agents_that_read_one_topic_in_two_ways_have_their_places(told: Told) -> None:
    (found,) = told("""
app = App("shop")

@app.agent(app.topic("b", value_type=int), name="one")
async def one(stream):
    async for _ in stream:
        pass

@app.agent(app.topic("b", value_type=str), name="two")
async def two(stream):
    async for _ in stream:
        pass
""")
    assert found.startswith(
        "error: one topic, read in two ways: b: agents one (wrong.py:5) and two (wrong.py:10) have"
    )


def test_topics_of_other_partition_counts_have_their_places(told: Told) -> None:
    found = told("""
app = App("shop")
sums = app.Table("sums"), app.Table("means", partitions=7)
app.topic("x", partitions=2)

@app.agent(app.topic("a", partitions=2), tables=["sums"])
async def one(stream):
    async for _ in stream:
        pass

@app.agent(app.topic("b", partitions=3), tables=["sums"])
async def two(stream):
    async for _ in stream:
        pass

@app.agent(app.topic("c", partitions=4), tables=["means"])
async def three(stream):
    async for _ in stream:
        pass
""")
    assert "reads together a (2), b (3), with state in sums: " in found[0]
    assert found[0].endswith("(wrong.py:12, wrong.py:7)")
    assert "table means asks for 7 partitions, c has 4: " in found[1]
    assert found[1].endswith("(wrong.py:17, wrong.py:4)")
    assert len(found) == 2
