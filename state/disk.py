"""What a disk refuses, as an error: of the user who named the folder, or of the world.

A folder that cannot be made, is a file or belongs to somebody else is the user's: nothing was
tried. A disk that is full or broken may become so at any time; what was committed is in Kafka, and
a store that was not written to its end is brought up from its changelog.
"""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from streamsx.errors import DescriptorsUsedUp, DiskFailed, SettingError, StreamsxError

NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})
FULL_OR_BROKEN: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def make_folder(folder: Path) -> None:
    """With those above it; all of them are there after a power loss. Raises OSError."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_folder(each.parent)


def sync_folder(folder: Path) -> None:
    """What was named in it is there after a power loss."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def translate_errors(path: object) -> Iterator[None]:
    """For what is done to a folder or file. Raises DiskFailed or SettingError for an OSError."""
    try:
        yield
    except OSError as error:
        raise refused(path, error) from error


def refused(path: object, error: OSError) -> StreamsxError:
    """Whose fault it is, in one line."""
    why = error.strerror or str(error)
    if error.errno in FULL_OR_BROKEN:
        return failed(path, why)
    if error.errno in NO_DESCRIPTOR:
        return used_up(path, why)
    return SettingError(
        f"state directory cannot be used: {path}: {why}: give --state-dir a folder that this user "
        "may write to"
    )


def failed(path: object, why: str) -> DiskFailed:
    """The world's."""
    return DiskFailed(
        f"disk full or broken: {path}: {why}: make room there, or give another --state-dir; what "
        "was committed is safe"
    )


def used_up(path: object, why: str, stores: int | None = None) -> DescriptorsUsedUp:
    """Return the error of a process that may open no more files; `stores`: those that it has open.

    The files it has open cannot be counted here: to look at them takes a descriptor.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = "" if stores is None else f", {stores} stores are open"
    return DescriptorsUsedUp(
        f"too few file descriptors: {path}: {why}: the limit of this process is {limit}{held}: "
        "raise the hard limit (ulimit -Hn, LimitNOFILE= of its service), or start more workers"
    )


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one; return the limit from now on.

    A store has 4 to 6 files open, and a login shell usually allows 1,024: 200 partitions are more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # a system whose own limit is below its hard one
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return hard
    return soft
