"""Lookup of the app in a module, which commands take as MODULE or MODULE:ATTR.

Not here: the use that a command makes of the app.
"""

import importlib
import sys
from pathlib import Path
from types import ModuleType

from streamsx.app.app import App
from streamsx.app.compat import users_place
from streamsx.app.import_mistakes import import_mistakes, refused
from streamsx.errors import UsageError
from streamsx.mistakes import Mistakes, at

ATTRIBUTE = "app"
"""Name of the app that counts when a module has several."""
FILE = ".py"


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
    try:
        if not name or name.startswith("."):
            raise ModuleNotFoundError(name=name)
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            remedy = "give the name as in an import, and start where it can be imported"
            if name.endswith(FILE):
                remedy = f"did you mean {_module_of(name)}? {remedy}"
            raise UsageError(f"no such module: {name}: {remedy}") from error
        raise _failed(name, error) from error
    except (Exception, SystemExit) as error:  # app.main() without `if __name__ == "__main__"`
        if not refused(error):
            raise _failed(name, error) from error
        found = Mistakes()
        for mistake in import_mistakes(error):
            found.add(mistake)
        found.check()
        raise


def _failed(name: str, error: BaseException) -> UsageError:
    """Return the error for a module that fails, with the user's line that failed."""
    what = f"module cannot be imported: {name}: {type(error).__name__}: {error}"
    return at(UsageError(f"{what}: fix it (--debug shows more)"), users_place(error))
