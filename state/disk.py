"""Errors of a disk: the fault of the user who named the folder, or of the world.

A folder that cannot be made, is a file or belongs to another user is the user's fault, found before
any work began. A disk may become full or broken at any time: committed data are in Kafka, and a
store that was not written completely is brought up to date from its changelog.
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
    """Make a folder and its parents, so that all survive a power loss.

    Raises:
        OSError: one cannot be made.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_folder(each.parent)


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder, so that they survive a power loss."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def translate_errors(path: object) -> Iterator[None]:
    """Translate an OSError of an operation on a path into DiskFailed or SettingError."""
    try:
        yield
    except OSError as error:
        raise refused(path, error) from error


def refused(path: object, error: OSError) -> StreamsxError:
    """Return the error of the user or of the world for an OSError, in one line."""
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
    """Return the error for a full or broken disk."""
    return DiskFailed(
        f"disk full or broken: {path}: {why}: make room there, or give another --state-dir; what "
        "was committed is safe"
    )


def used_up(path: object, why: str, stores: int | None = None) -> DescriptorsUsedUp:
    """Return the error for a process that may open no more files.

    `stores`: number of open stores. The open files cannot be counted here: to list them takes a
    descriptor.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = "" if stores is None else f", {stores} stores are open"
    return DescriptorsUsedUp(
        f"too few file descriptors: {path}: {why}: the limit of this process is {limit}{held}: "
        "raise the hard limit (ulimit -Hn, LimitNOFILE= of its service), or start more workers"
    )


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one; return the limit from now on.

    A store has 4 to 6 files open, and a login shell usually allows 1,024: 200 partitions need more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # a system whose own limit is below its hard one
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return hard
    return soft
