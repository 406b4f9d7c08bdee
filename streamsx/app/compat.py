"""Refusal of Faust features that are not here (yet), with a remedy for each: see `faust.toml`.

Faust's attributes, arguments and settings exist here too, or are refused before anything is
consumed, or have no effect, which gives a note. None of them raises AttributeError, falls through
into Faust itself, or is ignored in silence. A test checks this against Faust's own classes.

Not here: features of this package.
"""

import importlib
import tomllib
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from inspect import get_annotations, getattr_static
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from streamsx.app.declaration import declaration
from streamsx.app.users_code import users_line
from streamsx.errors import NotSupported


class FaustArgument(NamedTuple):
    """Argument or setting of Faust. `usual` is Faust's default, which counts as not given."""

    usual: object = None
    remedy: str = ""
    """Remedy to name in the refusal. Empty if every value is accepted and has no effect."""


_FAUST: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("faust.toml").read_text())


def _remedy(text: str) -> str:
    """Return a remedy's text. Remedies shared by several features are given by name."""
    return str(_FAUST["remedies"].get(text, text))


def _by_name(rows: Mapping[str, str]) -> dict[str, str]:
    return {name: _remedy(remedy) for remedy, names in rows.items() for name in names.split()}


def _arguments(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, FaustArgument]:
    return {
        name: FaustArgument(of.get("usual"), _remedy(of.get("remedy", "")))
        for names, of in rows.items()
        for name in names.split()
    }


SERVICE: Final = _by_name(_FAUST["service"])
ATTRIBUTES: Final = {kind: _by_name(rows) for kind, rows in _FAUST["attributes"].items()}
"""Refused attributes, by class or this package's module. All others of Faust's are internal."""
ARGUMENTS: Final = {call: _arguments(rows) for call, rows in _FAUST["arguments"].items()}
"""Arguments of Faust, by call."""
SETTINGS: Final = _arguments(_FAUST["settings"])

ABSENT: Final = object()
OURS: Final = __name__.removesuffix("compat")
"""Prefix of this package's modules; users' own classes may have any name."""


def refusal(thing: object, name: str) -> NotSupported | None:
    """Return the error for an attribute that only Faust has; None for other attributes.

    `thing` is an object of this package, or the package's own module.
    """
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


def sifted(
    call: str, where: str, given: Mapping[str, Any], allowed: Collection[str]
) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments without Faust's, and a note for each argument without effect.

    Raises:
        NotSupported: an argument is refused.
        TypeError: an argument is neither Faust's nor among the `allowed`.
    """
    ours = {}
    notes = []
    for name, value in given.items():
        known = ARGUMENTS[call].get(name)
        if known is None and name not in allowed:
            raise _unknown(name, where, allowed)
        if known is None:
            ours[name] = value
        elif value is None or value == known.usual:
            continue
        elif known.remedy:
            raise NotSupported(f"not in this version: {call}({name}=): {where}: {known.remedy}")
        else:
            notes.append(f"argument without effect here: {call}({name}=): {where}: leave it out")
    return ours, notes


def _unknown(name: str, where: str, allowed: Collection[str]) -> TypeError:
    near = get_close_matches(name, allowed, n=1)
    remedy = f"did you mean {near[0]}=?" if near else f"there are {', '.join(sorted(allowed))}"
    return TypeError(f"no such argument: {name}=: {where}: {remedy} ({users_line()})")


@declaration
def refuse(error: NotSupported) -> Any:
    """Refuse a name of the package that only Faust has.

    Raises:
        NotSupported: the error that is given.
    """
    raise error


class FaustNames:
    """Base of classes with Faust's names: attributes that only Faust has are refused by name."""

    __slots__ = ()

    if not TYPE_CHECKING:

        @declaration
        def __getattr__(self, name: str) -> Any:
            if error := refusal(self, name):
                raise error
            return object.__getattribute__(self, name)  # raises the error, a property's own too
