"""Lookup of the app in a module, which commands take as MODULE or MODULE:ATTR.

Not here: the use that a command makes of the app.
"""

import importlib
import sys
from pathlib import Path
from types import ModuleType

from streamsx.app.app import App
from streamsx.app.declaration import NotMade, as_mistake, is_refusal, noting
from streamsx.app.users_code import users_place
from streamsx.errors import UsageError
from streamsx.mistakes import Mistakes, all_of, at

ATTRIBUTE = "app"
"""Name of the app that counts when a module has several."""
FILE = ".py"
CONSEQUENCES = ("no such table: ", NotMade.__name__)
"""Parts of errors that come of a declaration that was refused."""


def app_named(name: str) -> App:
    """Import the module, also from the current directory, and return its app.

    The path of a file below the current directory stands for its module: `shop.py`.

    Raises:
        UsageError: the module does not exist, its import fails, or the choice of app is unclear.
        SeveralMistakes: the module and its app have several mistakes.
    """
    given, _, attribute = name.partition(":")
    module_name = _module_of(given) if Path(given).is_file() else given
    module = _imported(module_name)
    if attribute:
        found = getattr(module, attribute, None)
        if not isinstance(found, App):
            raise UsageError(f"not an app: {name}: name an object that streamsx.App made")
        return found
    apps = {key: thing for key, thing in vars(module).items() if isinstance(thing, App)}
    if ATTRIBUTE in apps:
        return apps[ATTRIBUTE]
    if not apps:
        raise UsageError(f"no app in the module: {name}: make one, app = streamsx.App(...)")
    if len({id(app) for app in apps.values()}) > 1:
        choices = ", ".join(f"{module_name}:{key}" for key in sorted(apps))
        raise UsageError(f"several apps: {name}: name one of {choices}")
    return next(iter(apps.values()))


def _module_of(file: str) -> str:
    """Return the module of a file below the current directory, by its path."""
    return file.removesuffix(FILE).removeprefix("./").replace("/", ".")


def _imported(name: str) -> ModuleType:
    if "" not in sys.path:
        sys.path.insert(0, "")
    if not name or name.startswith("."):
        raise _no_module(name)
    mistakes = Mistakes()
    module = _loaded(name, mistakes)
    if mistakes and module is not None:
        sys.modules.pop(name, None)
        _add_mistakes_of_apps(mistakes, module)
    mistakes.check()
    assert module is not None, name
    return module


def _loaded(name: str, mistakes: Mistakes) -> ModuleType | None:
    """Import a module; with mistakes that end the import, None."""
    try:
        with noting(mistakes):
            return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if is_refusal(error):
            mistakes.add(as_mistake(error), users_place(error))
        elif not mistakes:  # an error behind a mistake may come of it
            raise _failed(name, error) from error
    return None


def _add_mistakes_of_apps(mistakes: Mistakes, module: ModuleType) -> None:
    """Add the mistakes in the graphs of a module's apps, some of whose parts were refused."""
    for app in {thing for thing in vars(module).values() if isinstance(thing, App)}:
        try:
            app.topology()
        except Exception as error:  # what is no mistake itself comes of those that were noted
            found = all_of(error) if isinstance(error, UsageError) else ()
            for each in found:
                if not any(part in str(each) for part in CONSEQUENCES):
                    mistakes.add(each)


def _no_module(name: str) -> UsageError:
    remedy = "give the name as in an import, and start where it can be imported"
    if name.endswith(FILE):
        remedy = f"did you mean {_module_of(name)}? {remedy}"
    return UsageError(f"no such module: {name}: {remedy}")


def _failed(name: str, error: BaseException) -> UsageError:
    """Return the error for a module that is not there, or fails, with the user's line."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and f"{name}.".startswith(f"{missing}."):
        return _no_module(name)
    what = f"module cannot be imported: {name}: {type(error).__name__}: {error}"
    return at(UsageError(f"{what}: fix it (--debug shows more)"), users_place(error))
