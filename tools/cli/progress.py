"""What is going on, while a command waits: one live line on a terminal, else one every 5 s."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TextIO

SAY_EVERY_S = 5.0


@asynccontextmanager
async def progress(stream: TextIO, first: str) -> AsyncIterator[Callable[[str], None]]:
    """Hands out a function that takes the newest words for it."""
    if stream.isatty():
        from rich.console import Console
        from rich.markup import escape

        with Console(file=stream).status(escape(first)) as status:
            yield lambda text: status.update(escape(text))
        return
    words = [first]
    speaker = asyncio.create_task(_speak(stream, words), name="progress")
    try:
        yield words.append
    finally:
        speaker.cancel()


async def _speak(stream: TextIO, words: list[str]) -> None:
    while True:
        await asyncio.sleep(SAY_EVERY_S)
        del words[:-1]
        print(words[0], file=stream, flush=True)
