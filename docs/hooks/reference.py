"""Hook of mkdocs: the parts of reference pages that are made of the code when the site is built.

A page has a line `<!-- made of the code: settings -->` where such a part stands. The parts are the
settings of `streamsx.config`, the options of the commands, the metrics that modules declare, and
the tree of errors.

Not here: the API (docstrings, by mkdocstrings), the events (`docs/reference/events.md`).
"""

import argparse
import ast
import importlib
import math
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, Final, get_args

from faust.types.settings import Settings

from streamsx import tools
from streamsx.app.settings import PREFIX
from streamsx.broker.metrics import PREFIX as BROKER_PREFIX
from streamsx.config import BYTES, GROUPS, SECONDS, Config, name_of
from streamsx.errors import StreamsxError
from streamsx.metrics import MetricRegistry
from streamsx.tools.cli.command import CommandGroup, Parser

MARK: Final = re.compile(r"^<!-- made of the code: (\w+) -->$", re.MULTILINE)
FORMS: Final[Mapping[type, str]] = {bool: "`true` or `false`. ", int: "Number. ", float: "Share. "}
TIMES: Final = {unit: size for unit, size in SECONDS.items() if unit in {"ms", "s", "m", "h"}}
SIZES: Final = {"KiB": BYTES["kib"], "MiB": BYTES["mib"], "GiB": BYTES["gib"]}
USAGE_CHARS: Final = 80
EVERY_COMMAND: Final = frozenset({"--help", "--debug"})
"""Options of every command, which the page names once."""
PACKAGE: Final = Path(importlib.import_module("streamsx").__path__[0])


def on_page_markdown(markdown: str, **_: object) -> str:
    """Return a page with its parts that are made of the code; mkdocs calls this for each page."""
    return MARK.sub(lambda mark: "\n".join(PARTS[mark[1]]()), markdown)


# -- settings


def settings() -> Iterator[str]:
    """Yield a section for each group of settings, and in it one for each setting."""
    for known in fields(Config):
        if title := GROUPS.get(known.name):
            yield f"\n## {title}\n"
        name = name_of(known)
        yield f"### `{name}`\n"
        yield f"{known.metadata['doc']}\n"
        yield f"{form_of(known)}{default_of(known)}. {other_names(known)}\n"


def form_of(known: "Field[Any]") -> str:
    """Return the form of a setting's values, in words; empty where its sentences tell it."""
    if known.name.endswith("_s"):
        return "Duration. "
    if known.name.endswith("_bytes"):
        return "Size. "
    kinds = {bool, int, float} & {known.type, *get_args(known.type)}
    return FORMS[kinds.pop()] if kinds else ""


def default_of(known: "Field[Any]") -> str:
    """Return the default of a setting, in words."""
    varies = known.metadata["varies"]
    if known.default is MISSING:
        return "No default"
    if not known.default and known.default not in (0, False):
        return f"Default: {varies or 'none'}"
    return f"Default: `{written(known)}`" + (f"; {varies}" if varies else "")


def written(known: "Field[Any]") -> str:
    """Return a default as people write it, such as 500ms or 16MiB."""
    value: Any = known.default
    if value == math.inf:
        return "infinite"
    if known.name.endswith("_s"):
        return in_largest(value, TIMES)
    if known.name.endswith("_bytes"):
        return in_largest(value, SIZES)
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)


def in_largest(value: float, units: Mapping[str, float]) -> str:
    """Return a number in the largest unit in which it is whole."""
    fits = (unit for unit, size in units.items() if not round(value / size, 6) % 1)
    unit = max(fits, key=units.__getitem__)
    return f"{value / units[unit]:g}{unit}"


def other_names(known: "Field[Any]") -> str:
    """Return the names of a setting in the environment, in Kafka and in Faust."""
    name = name_of(known)
    told = known.metadata
    names = {
        "Environment": [f"{PREFIX}{name.upper()}", told["env"]],
        "Kafka": [told["kafka"]],
        "Faust": [each for each in (name, *told["names"]) if each in Settings.SETTINGS],
    }
    lists = {of: ", ".join(f"`{each}`" for each in given if each) for of, given in names.items()}
    return ". ".join(f"{of}: {given}" for of, given in lists.items() if given) + "."


# -- commands


class _Made(Exception):
    """Parser that a command has made."""


@contextmanager
def parsers_caught() -> Iterator[None]:
    """Let each command end when it has made its parser, which is raised."""

    def caught(parser: Parser, *_: object) -> None:
        raise _Made(parser)

    run = Parser.run
    Parser.run = caught  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Parser.run = run  # type: ignore[method-assign]


def parser_of(command: str) -> Parser:
    """Return the parser of a command."""
    with parsers_caught():
        try:
            importlib.import_module(f"streamsx.tools.{command}").main()
        except _Made as made:
            parser: Parser = made.args[0]
            return parser
    raise TypeError(f"command {command}: it does not end with Parser.run")


def commands() -> Iterator[str]:
    """Yield a section for each command and each command of a command."""
    for command in sorted(m.name for m in pkgutil.iter_modules(tools.__path__) if not m.ispkg):
        parser = parser_of(command)
        yield from command_section(parser, "##")
        if isinstance(parser, CommandGroup):
            for part in parser._commands.choices.values():
                yield from command_section(part, "###")


def command_section(parser: argparse.ArgumentParser, heading: str) -> Iterator[str]:
    """Yield the section of a command: purpose, usage, a table of its options, and examples."""
    yield f"\n{heading} {parser.prog.removeprefix('streamsx ')}\n\n{parser.description}\n"
    formatter = argparse.HelpFormatter(parser.prog, width=USAGE_CHARS)
    formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups)
    yield f"```text\n{formatter.format_help().strip()}\n```\n"
    if isinstance(parser, CommandGroup):
        return
    own = [each for each in parser._actions if not EVERY_COMMAND & {*each.option_strings}]
    if own:
        yield "| option | meaning |\n|---|---|"
    for action in own:
        words = formatter._format_action_invocation(action)
        meaning = formatter._expand_help(action) if action.help else ""
        yield f"| {cell(f'`{words}`')} | {cell(meaning)} |"
    if parser.epilog:
        yield f"\n```text\n{parser.epilog.strip()}\n```\n"


def cell(text: str) -> str:
    return text.replace("|", "\\|")


# -- metrics


def metrics() -> Iterator[str]:
    """Yield the tables of the metrics of a worker and of a broker."""
    for title, prefix in (("Worker", "streamsx_"), ("Broker", BROKER_PREFIX)):
        yield f"\n## {title}\n\n| metric | type | unit | labels | meaning |\n|---|---|---|---|---|"
        for _, row in sorted(declared(prefix)):
            yield row


def declared(prefix: str) -> Iterator[tuple[str, str]]:
    """Yield name and row of each metric that modules declare for registries with this prefix."""
    registry = MetricRegistry(prefix)
    for path in sorted(PACKAGE.rglob("*.py")):
        of_broker = path.relative_to(PACKAGE).parts[0] == "broker"
        if of_broker != (prefix == BROKER_PREFIX):
            continue
        for kind, args, more in declarations(path):
            given = (*args, float) if kind == "gauge" else args
            told = getattr(registry, kind)(*given, **more).declared
            words = "histogram" if kind == "latency" else kind
            labels = ", ".join(f"`{label}`" for label in told.labels)
            yield told.name, f"| `{told.name}` | {words} | {told.unit} | {labels} | {told.help} |"


def declarations(path: Path) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """Yield kind and constant arguments of each metric that a module declares."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        first = node.args[0] if node.args else None
        if node.func.attr in {"counter", "gauge", "latency"} and isinstance(first, ast.Constant):
            args = [ast.literal_eval(each) for each in node.args[:2]]
            more = {str(each.arg): ast.literal_eval(each.value) for each in node.keywords}
            yield node.func.attr, args, more


# -- errors


def errors(kind: type[StreamsxError] = StreamsxError, above: Sequence[int] = ()) -> Iterator[str]:
    """Yield the tree of errors as a list in lists; `above`: the exit codes of the bases."""
    code = "" if kind.exit_code in above[-1:] else f" (exit code {kind.exit_code})"
    meaning = " ".join((kind.__doc__ or "").partition("\n\n")[0].split())
    yield f"{'    ' * len(above)}- `{kind.__name__}`{code}: {meaning}"
    for each in kind.__subclasses__():
        if each.__module__ == kind.__module__:
            yield from errors(each, (*above, kind.exit_code))


PARTS: Final[dict[str, Callable[[], Iterator[str]]]] = {
    "commands": commands,
    "errors": errors,
    "metrics": metrics,
    "settings": settings,
}
"""Maker of each part that is made of the code."""
