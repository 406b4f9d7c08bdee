"""A folder that a command makes: it is there whole, or not at all."""

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamsx.errors import UsageError


@contextmanager
def new_folder(given: str) -> Iterator[Path]:
    """A draft beside it, which takes its name at the end. Raises UsageError, before that, where it
    cannot be made; nothing is written over.
    """
    out = Path(given)
    if ":/" in given:
        raise UsageError(f"no folder of this machine: {given}: give its path as --out")
    if out.exists():
        raise UsageError(f"is there already: {out}: give another --out")
    draft = out.absolute().with_name(f"{out.name}.{uuid.uuid4().hex}.tmp")
    try:
        draft.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"no folder: {out}: {error.strerror}: give another --out") from None
    try:
        yield draft
        draft.rename(out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
