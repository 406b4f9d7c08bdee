"""Declarations of an app, and how a command hears of all mistakes among them in one run.

A wrong declaration raises at once, as any wrong call does. That would end the import of the app at
the first mistake. So while a command imports the app (`noting`), a declaration notes its mistake
instead, with the user's line, and returns NOT_MADE. The import goes on; whatever is made of
something refused is refused in silence, because its mistake would be the same one. Below a `try` or
a `with` of the user it raises all the same: the module may know how to go on.

Not here: the import (`lookup`), mistakes of the graph (`App.topology`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from inspect import isfunction
from itertools import chain
from traceback import walk_tb
from typing import Any, Final, TypeVar, cast

from streamsx.app.users_code import OUR_PACKAGE, users_code_catches, users_line
from streamsx.errors import UsageError
from streamsx.mistakes import Mistakes

Declared = TypeVar("Declared", bound=Callable[..., Any])
Declaring = TypeVar("Declaring", bound=type)
WRONG: Final = (UsageError, TypeError, ValueError)
"""Errors that this package raises for a wrong declaration."""

_noted: ContextVar[Mistakes | None] = ContextVar("noted", default=None)


class NotMade:
    """Stand-in for what a refused declaration would have made.

    Behind the import its use is an error: the graph is looked at then, and a search such as `while
    field is not None: field = field.parent` would not come to an end.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._more()

    def __call__(self, *_arguments: object, **_options: object) -> Any:
        return self._more()

    def __getitem__(self, _key: object) -> Any:
        return self._more()

    def _more(self) -> "NotMade":
        if not is_noting():
            raise AttributeError(NotMade.__name__)
        return self

    def __iter__(self) -> Iterator[Any]:
        """Yield nothing. Without this, `__getitem__` would make an iteration without an end."""
        return iter(())


NOT_MADE: Final = NotMade()


@contextmanager
def noting(mistakes: Mistakes) -> Iterator[None]:
    """Let declarations note their mistakes within the block, and go on."""
    before = _noted.set(mistakes)
    try:
        yield
    finally:
        _noted.reset(before)


def is_noting() -> bool:
    """Return whether a command imports an app at the moment."""
    return _noted.get() is not None


def declaration(fun: Declared) -> Declared:
    """Mark a function that declares a part of an app, and raises if the declaration is wrong."""

    @wraps(fun)
    def declare(*arguments: Any, **options: Any) -> Any:
        mistakes = _noted.get()
        if mistakes is None:
            return fun(*arguments, **options)
        if any(map(_is_not_made, chain(arguments, options.values()))):
            return NOT_MADE
        ended = _noted.set(None)  # what the function declares itself is a part of this declaration
        try:
            return fun(*arguments, **options)
        except WRONG as error:
            if users_code_catches():
                raise
            mistakes.add(as_mistake(error), users_line())
            return NOT_MADE
        finally:
            _noted.reset(ended)

    return cast("Declared", declare)


def declares(kind: Declaring) -> Declaring:
    """Mark all public methods of a class as declarations."""
    for name, method in list(vars(kind).items()):
        if isfunction(method) and not name.startswith("_"):
            setattr(kind, name, declaration(method))
    return kind


def is_refusal(error: BaseException) -> bool:
    """Return whether this package has raised an error for a declaration of the user."""
    if isinstance(error, UsageError):
        return True
    last = [frame for frame, _ in walk_tb(error.__traceback__)][-1:]
    ours = any(frame.f_globals.get("__name__", "").startswith(OUR_PACKAGE) for frame in last)
    return isinstance(error, WRONG) and ours


def as_mistake(error: BaseException) -> UsageError:
    """Return an error of a declaration as a mistake of the user."""
    return error if isinstance(error, UsageError) else UsageError(str(error))


def _is_not_made(thing: object) -> bool:
    if isinstance(thing, dict):
        thing = [*thing.values()]
    if isinstance(thing, list | tuple | set):
        return any(map(_is_not_made, thing))
    return thing is NOT_MADE
