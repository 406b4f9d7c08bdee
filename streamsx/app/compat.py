"""Refuses what Faust has and we do not have (yet), with what to use instead: see `faust.toml`.

Faust's attributes, arguments and settings are ours, or refused here before anything is consumed, or
mean nothing here, which is a note. None of them is an AttributeError, falls through into Faust
itself, or is passed over in silence. A test holds this against Faust's own classes.

Not here: what is ours.
"""

import importlib
import sys
import tomllib
from collections.abc import Mapping
from inspect import get_annotations, getattr_static
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from streamsx.errors import NotSupported


class FaustArgument(NamedTuple):
    """An argument or setting of Faust's. `usual`: its value in Faust, which is as good as none."""

    usual: object = None
    remedy: str = ""
    """Empty: it means nothing here, whatever it is."""


_FAUST: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("faust.toml").read_text())


def _remedy(said: str) -> str:
    """Some have a name, because they are said of several things."""
    return str(_FAUST["remedies"].get(said, said))


def _by_name(said: Mapping[str, str]) -> dict[str, str]:
    return {name: _remedy(remedy) for remedy, names in said.items() for name in names.split()}


def _arguments(said: Mapping[str, Mapping[str, Any]]) -> dict[str, FaustArgument]:
    return {
        name: FaustArgument(of.get("usual"), _remedy(of.get("remedy", "")))
        for names, of in said.items()
        for name in names.split()
    }


SERVICE: Final = _by_name(_FAUST["service"])
ATTRIBUTES: Final = {kind: _by_name(said) for kind, said in _FAUST["attributes"].items()}
"""By class, or our own module. Whatever else Faust's class has is of its inside."""
ARGUMENTS: Final = {call: _arguments(said) for call, said in _FAUST["arguments"].items()}
"""By call."""
SETTINGS: Final = _arguments(_FAUST["settings"])

ABSENT: Final = object()
OUR_PACKAGE: Final = "streamsx."
OURS: Final = __name__.removesuffix("compat")
"""Users' own classes may bear any name."""


def refusal(thing: object, name: str) -> NotSupported | None:
    """Of an attribute that only Faust has; `thing`: one of ours, or our own module."""
    if isinstance(thing, ModuleType):
        remedy = ATTRIBUTES["streamsx"].get(name)
        return NotSupported(f"not in this version: {name}: {remedy}") if remedy else None
    ours = (each.__name__ for each in type(thing).__mro__ if each.__module__.startswith(OURS))
    kind = next((each for each in ours if each in ATTRIBUTES), None)
    if kind is None or name.startswith("_") or getattr_static(thing, name, ABSENT) is not ABSENT:
        return None
    remedy = ATTRIBUTES[kind].get(name)
    if remedy is None:
        theirs = getattr(importlib.import_module("faust"), kind).__mro__
        known = {each for base in theirs for each in (*vars(base), *get_annotations(base))}
        remedy = SERVICE.get(name, _remedy("inside")) if name in known else None
    return NotSupported(f"not in this version: {kind.lower()}.{name}: {remedy}") if remedy else None


def sifted(call: str, where: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What is ours of the arguments of a call, and a note for each that means nothing here.

    Raises NotSupported.
    """
    ours, notes = {}, []
    for name, value in given.items():
        known = ARGUMENTS[call].get(name)
        if known is None:
            ours[name] = value
        elif value is None or value == known.usual:
            continue
        elif known.remedy:
            raise NotSupported(f"not in this version: {call}({name}=): {where}: {known.remedy}")
        else:
            notes.append(f"argument without meaning here: {call}({name}=): {where}: leave it out")
    return ours, notes


def users_line() -> str:
    """Return file and line of the user's code that calls this package."""
    frame = sys._getframe(1)  # noqa: SLF001  # inspect.stack reads all files on the way
    while frame.f_globals.get("__name__", "").startswith(OUR_PACKAGE) and frame.f_back:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class FaustNames:
    """A base of what bears a name of Faust's: what only Faust's has is refused by name."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if error := refusal(self, name):
                raise error
            return object.__getattribute__(self, name)  # raises, and what a property has raised
