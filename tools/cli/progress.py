"""Progress of a command that waits: one live line on a terminal, else a line every 5 s.

The console that all commands draw on is here too. Not here: the drawings.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from threading import Event, Thread
from typing import TextIO

from rich.console import Console
from rich.text import Text

SAY_EVERY_S = 5.0
FILE_COLUMNS = 10_000
"""Width in a file or a pipe: a row or a note stays one line there, so that grep finds all of it."""


class Sheet(Console):
    """Console that raises BrokenPipeError when the reader of the output has gone.

    rich itself would exit with 1; here the command chooses the exit code.
    """

    def on_broken_pipe(self) -> None:
        raise  # noqa: PLE0704  # rich calls this while it handles the error


def console_on(stream: TextIO, *, markup: bool = False) -> Console:
    """Return a console on the stream.

    `is_terminal` means that the console can redraw. A dumb terminal counts as a file. Texts are
    printed as they are, without colours for numbers and pictures for `:on:`; with `markup`, square
    brackets are styles.
    """
    draws = stream.isatty() and os.environ.get("TERM") != "dumb"
    width = None if draws else FILE_COLUMNS
    return Sheet(
        file=stream, force_terminal=draws, markup=markup, highlight=False, emoji=False, width=width
    )


@asynccontextmanager
async def progress(stream: TextIO, first: str) -> AsyncIterator[Callable[[str], None]]:
    """Show progress during the block; give a function that takes the newest text."""
    console = console_on(stream)
    if console.is_terminal:
        with console.status(Text(first)) as status:
            yield lambda text: status.update(Text(text))
        return
    words = [first]
    speaker = asyncio.create_task(_speak(stream, words), name="progress")
    try:
        yield words.append
    finally:
        speaker.cancel()


@contextmanager
def blocking_progress(stream: TextIO, first: str) -> Iterator[Callable[[str], None]]:
    """Show progress as `progress` does, for work that blocks its thread."""
    console = console_on(stream)
    if console.is_terminal:
        with console.status(Text(first)) as status:
            yield lambda text: status.update(Text(text))
        return
    words = [first]
    over = Event()

    def speak() -> None:
        while not over.wait(SAY_EVERY_S):
            del words[:-1]
            print(words[0], file=stream, flush=True)

    speaker = Thread(target=speak, name="progress", daemon=True)
    speaker.start()
    try:
        yield words.append
    finally:
        over.set()
        speaker.join()


async def _speak(stream: TextIO, words: list[str]) -> None:
    while True:
        await asyncio.sleep(SAY_EVERY_S)
        del words[:-1]
        print(words[0], file=stream, flush=True)
