"""Power loss for a broker's directory: files and names fall back to their last flush.

The files are real ones. While `watching`, every fsync under the directory is noted with the data
that reaches the disk: for a file the bytes written since the last fsync, for a folder the names. A
failed fsync brings nothing to the disk. For a file that is written in place, the failed fsync also
forgets these bytes, as Linux does. Names, and files that are written whole, reach the disk with the
next fsync. RocksDB calls the kernel by itself: after each write that reaches the disk, the
whole folder is noted. `lose` makes the directory anew from these notes. Some of the bytes that were
appended since the last flush may have reached the disk.

Not here: disks that lie, sectors written in halves; the disks of workers (`disk`).
"""

import errno
import os
import random
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from streamsx.broker.metadata_store import MetadataStore

Inode = tuple[int, int]
LOCK = "lock"
"""File that is lost; a new broker writes it anew. It holds a process id, which has more digits in
one run than in another, and how much of a file is left is drawn by its length."""


class PowerLoss:
    """Simulated power loss of one directory, which may be made later."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self._folder = folder
        self._rng = rng
        self.failures = 0.0
        """Share of the flushes of files and folders that fail."""
        self._files: dict[Inode, bytes] = {}
        self._dirty: dict[Inode, list[tuple[int, int]]] = {}
        self._names: dict[Inode, dict[str, Inode]] = {}
        self._kept: dict[Inode, int] = {}  # open descriptors, so that no other file gets the number
        self._meta: dict[str, bytes] = {}
        self._looking = threading.Lock()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note all that this process brings to the disk while the context lasts."""
        with ExitStack() as stack:
            for of, name, noting in (
                (os, "fsync", self._synced), (os, "fdatasync", self._flushed),
                (os, "pwrite", self._written),
                (MetadataStore, "_write", self._noted), (MetadataStore, "flush", self._noted),
            ):  # fmt: skip
                real = getattr(of, name)
                setattr(of, name, noting(real))
                stack.callback(setattr, of, name, real)
            stack.callback(self._let_go)
            yield

    def lose(self) -> None:
        """Drop all data that need not have reached the disk. No process may have a file open."""
        if not self._folder.exists():
            return
        root = number(os.stat(self._folder))
        left = self._folder.with_name(f"{self._folder.name}.left")
        self._folder.rename(left)
        kept = {number(path.stat()): path for path in left.rglob("*")}
        self._make(self._folder, root, kept)
        if "meta" in self._names.get(root, {}):
            (self._folder / "meta").mkdir()
            for name, data in self._meta.items():
                (self._folder / "meta" / name).write_bytes(data)
        shutil.rmtree(left)
        self._let_go()
        self._note_all()

    def _make(self, folder: Path, inode: Inode, kept: dict[Inode, Path]) -> None:
        folder.mkdir()
        for name, each in sorted(self._names.get(inode, {}).items()):
            was = kept.get(each)
            if name in ("meta", LOCK) or (was is None and each not in self._files):
                continue
            if was is not None and was.is_dir():
                self._make(folder / name, each, kept)
            else:
                (folder / name).write_bytes(self._torn(each, was))

    def _torn(self, inode: Inode, was: Path | None) -> bytes:
        """Return the flushed bytes of a file, and perhaps a part of the bytes appended since."""
        flushed = self._files.get(inode, b"")
        now = was.read_bytes() if was is not None else b""
        more = len(now) - len(flushed)
        if more <= 0 or not now.startswith(flushed):
            return flushed
        return now[: len(flushed) + self._rng.choice((0, 0, self._rng.randint(0, more), more))]

    def _note_all(self) -> None:
        """Note the whole directory: after a start, all data in memory is on the disk."""
        for noted in (self._files, self._names, self._dirty):
            noted.clear()
        for path in (self._folder, *self._folder.rglob("*")):
            fd = os.open(path, os.O_RDONLY)
            self._note(fd)
            os.close(fd)

    def _synced(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def synced(fd: int) -> None:
            real(fd)
            if self._ours(fd):
                self._fail_perhaps()
                self._note(fd)

        return synced

    def _flushed(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def flushed(fd: int) -> None:
            real(fd)
            if self._ours(fd):
                written = self._dirty.pop(number(os.fstat(fd)), [])
                self._fail_perhaps()
                self._note(fd, written)

        return flushed

    def _fail_perhaps(self) -> None:
        if self._rng.random() < self.failures:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _written(self, real: Callable[..., int]) -> Callable[..., int]:
        def written(fd: int, data: bytes, at: int) -> int:
            count = real(fd, data, at)
            if self._ours(fd):
                self._dirty.setdefault(number(os.fstat(fd)), []).append((at, count))
            return count

        return written

    def _ours(self, fd: int) -> bool:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        return path == self._folder or self._folder in path.parents

    def _note(self, fd: int, written: list[tuple[int, int]] | None = None) -> None:
        """Note a file or folder. `written`: offsets and lengths; None for the whole file."""
        about = os.fstat(fd)
        inode = number(about)
        if inode not in self._kept:
            self._kept[inode] = os.dup(fd)
        if stat.S_ISDIR(about.st_mode):
            self._note_names(fd, inode)
            return
        now = Path(
            f"/proc/self/fd/{fd}"
        ).read_bytes()  # the descriptor may be open for writing only
        data = bytearray(self._files.get(inode, b"")[: about.st_size].ljust(about.st_size, b"\0"))
        for at, count in [(0, about.st_size)] if written is None else written:
            data[at : at + count] = now[at : at + count]
        self._files[inode] = bytes(data)

    def _note_names(self, fd: int, folder: Inode) -> None:
        """Note the names in a folder, unflushed files too; drop files that have no name now."""
        now = dict(names(fd))
        before = self._names.get(folder, {})
        for name, inode in tuple(now.items()):
            if inode not in self._kept:
                with suppress(FileNotFoundError):
                    self._kept[inode] = os.open(f"/proc/self/fd/{fd}/{name}", os.O_RDONLY)
        for inode in set(before.values()) - set(now.values()):
            self._files.pop(inode, None)
            if (kept := self._kept.pop(inode, None)) is not None:
                os.close(kept)
        self._names[folder] = now

    def _noted(self, real: Callable[..., None]) -> Callable[..., None]:
        def noted(meta: MetadataStore, *args: Any, **options: Any) -> None:
            real(meta, *args, **options)
            folder = self._folder / "meta"
            if options.get("sync") or meta._sync or not args:
                with self._looking:  # a flushing thread must not put back older contents
                    self._meta = {path.name: path.read_bytes() for path in folder.iterdir()}

        return noted

    def _let_go(self) -> None:
        for fd in self._kept.values():
            os.close(fd)
        self._kept.clear()


def names(fd: int) -> Iterator[tuple[str, Inode]]:
    """Yield the names in a folder, except those that another thread removes meanwhile."""
    with os.scandir(fd) as found:
        for each in found:
            with suppress(FileNotFoundError):
                yield each.name, number(each.stat())


def number(about: os.stat_result) -> Inode:
    """Return the identity of a file, independent of the name."""
    return about.st_dev, about.st_ino
