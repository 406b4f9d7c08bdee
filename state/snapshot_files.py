"""Files of snapshots under one URI, each written once and then only read.

For `file:` and plain paths the files are hard links, which are free, and fsynced. pyarrow serves
the schemes that it knows (`s3: gs: hdfs:`), and fsspec behind pyarrow serves all others.
Credentials come from the environment; credentials in a URI appear in no message.

Out of scope: the meaning of the files (`snapshot`), caching, retries beyond those of the libraries.
"""

import errno
import os
import re
import shutil
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import unquote, unquote_plus, urlsplit

from streamsx.errors import SettingError, SnapshotFailed, StreamsxError
from streamsx.state.disk import sync_folder

CHUNK_BYTES: Final = 4 << 20
NO_LINK: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS})
"""Errors of a link whose other end is on another disk, or on a disk without links."""
OBJECT_STORES: Final = frozenset({"s3", "gcs", "abfs"})
"""Stores without folders, in which written files appear whole.

pyarrow would make objects of folder names there.
"""
SECRET: Final = re.compile(
    r"(//)([^?]*)(?=@)"
    r"|([?&](?!(?:region|endpoint_override|scheme|allow_bucket_creation)=)[^=&]*=?)([^&]*)"
)
"""Parts of a URI that may be secret.

They are user and password, also with slashes in them, and the query except for harmless options.
"""
DELAYED: Final = "allow_delayed_open=true"
"""Option for S3: a small file is one request, and not an upload in parts."""
TMP: Final = ".tmp"

Step = Callable[[], object]
"""Callback during a copy; an exception from the callback ends the copy."""


class SnapshotFiles:
    """Files by name under `uri`, which is safe to show: object stores, HDFS, stores of fsspec.

    Raises:
        SnapshotFailed: from every method, when the store cannot be read or written.
    """

    def __init__(self, uri: str) -> None:
        self._given = uri
        self.uri = masked(uri)
        with self._translated():
            self._fs, root = file_system(uri)
        self._root = root.rstrip("/")

    def publish(self, local: Path, name: str) -> None:
        """Copy a local file to an unused name, which no reader looks up if the copy is torn."""
        with self._translated(name), local.open("rb") as source, self._output(name) as target:
            shutil.copyfileobj(source, target, CHUNK_BYTES)

    def create(self, name: str, data: bytes) -> None:
        """Write a complete file or nothing.

        On object stores a writer that comes between look-up and write is overwritten.

        Raises:
            FileExistsError: the name is taken.
        """
        folder, _, base = name.rpartition("/")
        if base in self.names(folder):
            raise FileExistsError(errno.EEXIST, "is there already", name)
        whole = self._fs.type_name in OBJECT_STORES
        draft = name if whole else f"{name}.{uuid.uuid4().hex}{TMP}"
        with self._translated(name):
            with self._output(draft) as target:
                target.write(data)  # in one piece: an error would complete a part of the file
            if not whole:
                self._fs.move(f"{self._root}/{draft}", f"{self._root}/{name}")

    def fetch(self, name: str, local: Path, step: Step = bool) -> None:
        """Copy a file to `local`, completely or not at all, unless `local` is there already."""
        if local.exists():
            return
        with drafted(local) as target, closing(self._chunks(name)) as chunks:
            for chunk in chunks:
                target.write(chunk)
                step()

    def read(self, name: str) -> bytes:
        return b"".join(self._chunks(name))

    def names(self, folder: str, *, drafts: bool = False) -> list[str]:
        """Return the names of the files in a folder, sorted; an absent folder has none.

        `drafts`: include files that are not complete yet, or never will be.
        """
        from pyarrow import fs

        with self._translated(folder):
            selector = fs.FileSelector(f"{self._root}/{folder}", allow_not_found=True)
            found = [each.base_name for each in self._fs.get_file_info(selector) if each.is_file]
            return sorted(name for name in found if drafts or not name.endswith(TMP))

    def delete(self, name: str) -> None:
        with self._translated(name):
            self._fs.delete_file(f"{self._root}/{name}")

    def _chunks(self, name: str) -> Generator[bytes]:
        with self._translated(name), self._input(name) as source:
            while chunk := source.read(CHUNK_BYTES):
                yield chunk

    def _input(self, name: str) -> Any:
        return self._fs.open_input_stream(f"{self._root}/{name}")

    def _output(self, name: str) -> Any:
        path = f"{self._root}/{name}"
        if self._fs.type_name not in OBJECT_STORES:
            self._fs.create_dir(path.rpartition("/")[0], recursive=True)
        return self._fs.open_output_stream(path)

    @contextmanager
    def _translated(self, name: str = "") -> Iterator[None]:
        """Translate errors; the libraries below share no narrower exception."""
        try:
            yield
        except (FileExistsError, StreamsxError):
            raise
        except Exception as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            where = f"{self.uri}/{name}".rstrip("/")
            raise SnapshotFailed(
                f"snapshot cannot be read or written: {where}: {hidden(why, self._given)}: see "
                "that it is up and has room"
            ) from None


def open_files(uri: str) -> SnapshotFiles:
    """Return the files under a URI.

    Raises:
        SettingError: the scheme is unknown, or the URI invalid.
        SnapshotFailed: the store cannot be read.
    """
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise SettingError(
            f"not a URI: {masked(uri)}: {hidden(str(error), uri)}: give a folder, or SCHEME://PLACE"
        ) from None
    if parts.scheme not in ("", "file"):
        return SnapshotFiles(uri)
    if parts.netloc not in ("", "localhost"):
        raise SettingError(
            f"snapshots on another host: {masked(uri)}: write file:///FOLDER, or a scheme that "
            "reaches it"
        )
    path = re.sub("^file:(//(localhost)?)?", "", uri)  # keeps ? and #, which are plain characters
    return LinkFiles(Path(path if path == uri else unquote(path)), uri)


def absolute(uri: str) -> str:
    """Return the URI with an absolute path, valid in a process with another current folder."""
    return uri if "://" in uri or uri.startswith("file:") else os.path.abspath(uri)


def masked(uri: str) -> str:
    """Return the URI without possible secrets: `s3://***@bucket/folder?region=eu`."""
    return SECRET.sub(lambda found: f"{found[1] or found[3]}***", uri)


def hidden(text: str, uri: str) -> str:
    """Return a library's message in one line, without the possible secrets of the URI."""
    for _, user, _, value in SECRET.findall(uri):
        for secret in filter(None, (user and f"{user}@", user.partition(":")[2], value)):
            for form in (secret, unquote_plus(secret)):
                text = text.replace(form, "***@" if form.endswith("@") else "***")
    return " ".join(text.split())


class LinkFiles(SnapshotFiles):
    """Files in a folder of this machine or a mounted one, as hard links that share blocks."""

    def __init__(self, root: Path, uri: str) -> None:
        self._folder = root
        self.uri = uri
        self._given = uri

    def publish(self, local: Path, name: str) -> None:
        with self._translated(name):
            place(local, target := self._target(name))
            sync_folder(target.parent)

    def fetch(self, name: str, local: Path, step: Step = bool) -> None:
        with self._translated(name):
            there = local.exists() or linked(self._folder / name, local)
        if not there:
            super().fetch(name, local, step)

    def create(self, name: str, data: bytes) -> None:
        with self._translated(name):
            with drafted(target := self._target(name), name_once) as file:
                file.write(data)
            sync_folder(target.parent)

    def names(self, folder: str, *, drafts: bool = False) -> list[str]:
        with self._translated(folder):
            path = self._folder / folder
            found = [
                each.name for each in (path.iterdir() if path.is_dir() else ()) if each.is_file()
            ]
            return sorted(name for name in found if drafts or not name.endswith(TMP))

    def delete(self, name: str) -> None:
        with self._translated(name):
            (self._folder / name).unlink()

    def _target(self, name: str) -> Path:
        """Return the path of a file, in a folder that survives a power loss."""
        target = self._folder / name
        new = [folder for folder in target.parents if not folder.exists()]
        target.parent.mkdir(parents=True, exist_ok=True)
        for folder in new:
            sync_folder(folder.parent)
        return target

    def _input(self, name: str) -> IO[bytes]:
        return (self._folder / name).open("rb")


def file_system(uri: str) -> Any:
    """Return the file system of pyarrow, or of fsspec through pyarrow, and the root.

    Raises:
        SettingError: pyarrow is missing, or no library knows the scheme.
    """
    shown = masked(uri)
    scheme = uri.partition(":")[0]
    try:
        import pyarrow as pa
        from pyarrow import fs
    except ImportError:
        raise SettingError(
            f"pyarrow is not installed: {shown}: pip install -e '.[snapshots]'"
        ) from None
    more = f"{'&' if '?' in uri else '?'}{DELAYED}" if scheme == "s3" else ""
    try:
        return fs.FileSystem.from_uri(uri + more)
    except pa.ArrowInvalid as error:
        why = hidden(str(error), uri)
    try:
        import fsspec

        inner, root = fsspec.core.url_to_fs(uri)
        return fs.PyFileSystem(fs.FSSpecHandler(inner)), root
    except (ImportError, ValueError):
        raise SettingError(
            f"cannot reach {scheme}: {shown}: {why}: use file: or s3:, or install fsspec and what "
            f"it needs for {scheme}"
        ) from None


def place(source: Path, target: Path) -> None:
    """Link a file, or else copy it so that it appears complete.

    Raises:
        FileExistsError: the target exists.
    """
    if not linked(source, target):
        with source.open("rb") as old, drafted(target) as new:
            shutil.copyfileobj(old, new, CHUNK_BYTES)


def linked(source: Path, target: Path) -> bool:
    """Make a hard link; return False if the place takes none."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in NO_LINK:
            raise
        return False
    return True


def name_once(draft: Path, target: Path) -> None:
    """Give a draft its name, unless the name is taken.

    If no link can be made, a writer that comes between look-up and rename is overwritten, as on
    object stores.

    Raises:
        FileExistsError: the name is taken.
    """
    if not linked(draft, target):
        if target.exists():
            raise FileExistsError(errno.EEXIST, "is there already", str(target))
        draft.replace(target)


@contextmanager
def drafted(target: Path, settle: Callable[[Path, Path], object] = os.replace) -> Iterator[Any]:
    """Open a draft that gets its name once the file is complete and on the disk."""
    draft = target.with_name(f"{target.name}.{uuid.uuid4().hex}{TMP}")
    try:
        with draft.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        settle(draft, target)
    finally:
        draft.unlink(missing_ok=True)
