"""Output folder of a command: complete, or absent."""

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamsx.errors import UsageError


@contextmanager
def new_folder(given: str) -> Iterator[Path]:
    """Create a draft folder beside the given path, and rename the draft at the end.

    An existing folder is never overwritten. After an error the draft is deleted.

    Raises:
        UsageError: the path exists, or is a URI, or the draft cannot be created.
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
