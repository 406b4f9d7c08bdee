"""What is going on, while a command waits: one live line on a terminal, else one every 5 s.

And what can be drawn on at all. Not here: what is drawn.
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
"""A row or note in a file, or in a pipe, is one line: for who searches it."""


class Sheet(Console):
    """To rich, output that nobody reads on is an end with 1; here commands say which it is."""

    def on_broken_pipe(self) -> None:
        raise  # noqa: PLE0704  # it is called where the error is handled


def console_on(stream: TextIO, *, markup: bool = False) -> Console:
    """`is_terminal`: it can be drawn on. On a dumb one nothing can, as in a file."""
    draws = stream.isatty() and os.environ.get("TERM") != "dumb"
    width = None if draws else FILE_COLUMNS
    return Sheet(file=stream, force_terminal=draws, markup=markup, highlight=False, width=width)


@asynccontextmanager
async def progress(stream: TextIO, first: str) -> AsyncIterator[Callable[[str], None]]:
    """Hands out a function that takes the newest words for it."""
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
    """The same, for work that holds its thread."""
    console = console_on(stream)
    if console.is_terminal:
        with console.status(Text(first)) as status:
            yield lambda text: status.update(Text(text))
        return
    words, over = [first], Event()

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
