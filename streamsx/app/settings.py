"""Resolution of settings into a Config.

The command line takes precedence, then `STREAMSX_<NAME>`, then Faust's own variable, then the code,
then the default.

An unknown name is an error that names the nearest setting. An unknown `STREAMSX_` variable is a
note, because a machine may have others. A setting of Faust without effect here (yet) is a note: a
Faust app file starts unchanged.

Not here: the list of settings (`streamsx.config`).
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

from streamsx.app import compat
from streamsx.app.users_code import users_line
from streamsx.config import (
    EXACT_COMMIT_INTERVAL_S,
    EXACTLY_ONCE,
    SETTINGS,
    Config,
    contradictions,
    legal,
    takes_none,
)
from streamsx.errors import NotSupported, SettingError
from streamsx.mistakes import Mistakes
from streamsx.tasks import crash_points

PREFIX = "STREAMSX_"
FAUSTS_MARK = "_origin"
"""Attribute of `app.conf` that Faust's command line alone reads, when it has imported the app."""


class AppConfig(Config):
    """Config of an app as users see it, as `app.conf`: read by any name of a setting, never set."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return a setting by another name of its own, such as Faust's.

            Raises:
                AttributeError: there is no such setting.
                SystemExit: Faust's command line has imported the app.
            """
            if name == FAUSTS_MARK:
                words = " ".join(sys.argv[1:])
                print(f"error: {self.id} is an app of streamsx: type streamsx {words}",  # noqa: T201
                      file=sys.stderr)  # fmt: skip
                raise SystemExit(SettingError.exit_code)
            if name.startswith("_"):
                raise AttributeError(name)
            if name not in SETTINGS:
                raise AttributeError(f"app.conf.{name}: {_without(name)}")
            return getattr(self, SETTINGS[name].name)

        def __setattr__(self, name: str, value: object) -> None:
            raise SettingError(
                f"settings are fixed: app.conf.{name} = {value!r} ({users_line()}): give it to "
                f"App({self.id!r}, {name}=...)"
            )


class SettledConfig(NamedTuple):
    """Config with `notes` for the user who starts the app, one line each."""

    config: AppConfig
    notes: tuple[str, ...]


class _Given(NamedTuple):
    name: str
    value: object
    where: str
    made_at: str = ""
    """File and line, of a value in the code."""


def resolve_config(
    app_id: str,
    code: Mapping[str, object],
    command_line: Mapping[str, object],
    environment: Mapping[str, str],
    made_at: str = "",
) -> SettledConfig:
    """Return the Config of an app. `code` has the arguments of the app's constructor.

    `made_at` is the file and line of that call.

    Raises:
        SettingError: an unknown name, a bad value, or two settings that contradict.
        NotSupported: a setting of Faust that cannot be followed.
        SeveralMistakes: there are several of these.
    """
    values: dict[str, object] = {}
    notes: list[str] = []
    mistakes = Mistakes()
    for source in (
        _from_code({"id": app_id, **code}, made_at),
        _from_faust(environment),
        _from_environment(environment, notes),
        (_Given(name, value, "the command line") for name, value in command_line.items()),
    ):
        values |= _parsed(source, notes, mistakes)
    mistakes.check()
    values.setdefault("revoke_timeout_s", values.get("rebalance_timeout_s", 60.0))
    values.setdefault("on_stop", "stay" if values.get("static_membership") else "leave")
    if values.get("processing_guarantee") == EXACTLY_ONCE:
        values.setdefault("commit_interval_s", EXACT_COMMIT_INTERVAL_S)
    config = AppConfig(**values)  # type: ignore[arg-type]  # each was parsed by its own field
    if config.version > 1:
        config = replace(config, id=_of_version(config))
    for what in contradictions(config):
        text = f"settings contradict: app {app_id}: {what}: change one of them"
        mistakes.add(SettingError(text), made_at)
    mistakes.check()
    return SettledConfig(config, tuple(notes))


def _of_version(config: Config) -> str:
    form = config.id_format
    try:
        return legal(form.format(id=config.id, self=config))
    except (AttributeError, LookupError, ValueError) as error:
        what = f"{form!r} gives no id: {error}: write {{id}}-v{{self.version}}"
        raise SettingError(f"bad setting: id_format (app {config.id}): {what}") from error


def _from_code(code: Mapping[str, Any], made_at: str) -> Iterator[_Given]:
    where = f"app {code['id']}"
    for name, value in code.items():
        if name == "config" and not isinstance(value, Mapping):
            raise SettingError(f"bad setting: config ({where}): {value!r}: give a dict")
        if name == "config":
            found = (_dotted(dotted, given, where) for dotted, given in value.items())
            yield from (each._replace(made_at=made_at) for each in found)
        elif value is not None or name not in SETTINGS or takes_none(SETTINGS[name]):
            yield _Given(name, value, where, made_at)


def _dotted(name: str, value: object, where: str) -> _Given:
    """Parse a name in Kafka's form, such as `session.timeout.ms`, in milliseconds."""
    plain = name.replace(".", "_")
    if plain.endswith("_ms"):
        return _Given(plain.removesuffix("_ms"), f"{value}ms", where)
    return _Given(plain, value, where)


def _from_faust(environment: Mapping[str, str]) -> Iterator[_Given]:
    for known in fields(Config):
        if (variable := known.metadata["env"]) in environment:
            yield _Given(known.name, environment[variable], variable)


def _from_environment(environment: Mapping[str, str], notes: list[str]) -> Iterator[_Given]:
    for variable, value in sorted(environment.items()):
        name = variable.removeprefix(PREFIX).lower()
        if not variable.startswith(PREFIX) or variable == crash_points.VARIABLE:
            continue
        if name in SETTINGS:
            yield _Given(name, value, variable)
        else:
            notes.append(f"unknown variable: {variable}: {_nearest(name, variable=True)}")


def _parsed(source: Iterator[_Given], notes: list[str], mistakes: Mistakes) -> dict[str, object]:
    """Return the values by field. Raises SettingError for a source that cannot be read."""
    values: dict[str, object] = {}
    names: dict[str, str] = {}
    for given in source:
        field = SETTINGS.get(given.name)
        if field is None:
            with mistakes.noted(given.made_at):
                notes.append(_meaningless(given))
            continue
        if field.name in names:
            twice = f"set twice: {names[field.name]} and {given.name}: {given.where}"
            mistakes.add(SettingError(f"{twice}: keep one of them"), given.made_at)
        names[field.name] = given.name
        try:
            values[field.name] = field.metadata["parse"](given.value)
        except (TypeError, ValueError) as error:
            what = f"bad setting: {given.name} ({given.where}): {error}"
            mistakes.add(SettingError(what), given.made_at)
    return values


def _without(name: str) -> str:
    """Return why `app.conf` does not have a name."""
    from faust.types.settings import Settings  # 200 ms that only a mistake pays

    if name in Settings.SETTINGS:
        known = compat.SETTINGS.get(name)
        return (
            f"a setting of Faust without effect here: {known.remedy}"
            if (known and known.remedy)
            else "a setting of Faust without effect here: leave it out"
        )
    return f"no such setting: {_nearest(name)}"


def _meaningless(given: _Given) -> str:
    """Return a note on a setting of Faust. Raises NotSupported, SettingError."""
    from faust.types.settings import Settings  # 200 ms that only such an app pays

    if given.name in Settings.SETTINGS:
        known = compat.SETTINGS.get(given.name)
        if known is not None and given.value not in (None, known.usual):
            raise NotSupported(
                f"not in this version: setting {given.name} ({given.where}): {known.remedy}"
            )
        return f"setting without effect here: {given.name} ({given.where}): leave it out"
    raise SettingError(f"unknown setting: {given.name} ({given.where}): {_nearest(given.name)}")


def _nearest(name: str, *, variable: bool = False) -> str:
    found = get_close_matches(name, SETTINGS, n=1)
    if not found:
        return "see the settings of Config"
    return f"did you mean {PREFIX + found[0].upper() if variable else found[0]}?"
