"""Where snapshots lie: files under one URI, each written once and then only read.

`file:` and plain paths are hard links, which are free, and fsynced; what pyarrow knows (`s3: gs:
hdfs:`) goes through it, all else through fsspec behind it. Credentials come from the environment;
those that stand in a URI are in no message.

Not here: what the files mean (`snapshot`), caching, retries beyond those of the libraries.
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
"""The other place is on another disk, or takes no links."""
OBJECT_STORES: Final = frozenset({"s3", "gcs", "abfs"})
"""Have no folders; pyarrow would make objects of their names. What is written appears whole."""
SECRET: Final = re.compile(
    r"(//)([^?]*)(?=@)"
    r"|([?&](?!(?:region|endpoint_override|scheme|allow_bucket_creation)=)[^=&]*=?)([^&]*)"
)
"""In a URI: who somebody is, also with slashes in it, and of the query all but what is harmless."""
DELAYED: Final = "allow_delayed_open=true"
"""For S3: what is small is one request, and not an upload in parts."""
TMP: Final = ".tmp"

Step = Callable[[], object]
"""Called now and then while a file is copied; what it raises ends that."""


class SnapshotFiles:
    """Files by their names under `uri`, which may be shown: in object stores, HDFS and whatever
    fsspec knows. All raise SnapshotFailed.
    """

    def __init__(self, uri: str) -> None:
        self._given = uri
        self.uri = masked(uri)
        with self._told():
            self._fs, root = file_system(uri)
        self._root = root.rstrip("/")

    def publish(self, local: Path, name: str) -> None:
        """A copy of a local file under a name that nobody has used, and that nobody looks for when
        it is torn.
        """
        with self._told(name), local.open("rb") as source, self._output(name) as target:
            shutil.copyfileobj(source, target, CHUNK_BYTES)

    def create(self, name: str, data: bytes) -> None:
        """All of it, or nothing; FileExistsError when the name is taken. On object stores who comes
        between look and write is overwritten.
        """
        folder, _, base = name.rpartition("/")
        if base in self.names(folder):
            raise FileExistsError(errno.EEXIST, "is there already", name)
        whole = self._fs.type_name in OBJECT_STORES
        draft = name if whole else f"{name}.{uuid.uuid4().hex}{TMP}"
        with self._told(name):
            with self._output(draft) as target:
                target.write(data)  # in one: an error would complete what came before it
            if not whole:
                self._fs.move(f"{self._root}/{draft}", f"{self._root}/{name}")

    def fetch(self, name: str, local: Path, step: Step = bool) -> None:
        """A copy of it here, whole or not at all; one that is here already is one."""
        if local.exists():
            return
        with drafted(local) as target, closing(self._chunks(name)) as chunks:
            for chunk in chunks:
                target.write(chunk)
                step()

    def read(self, name: str) -> bytes:
        return b"".join(self._chunks(name))

    def names(self, folder: str, *, drafts: bool = False) -> list[str]:
        """Of the files in it, sorted; none of a folder that is not there. `drafts`: with those that
        are not whole yet, or never will be.
        """
        from pyarrow import fs

        with self._told(folder):
            selector = fs.FileSelector(f"{self._root}/{folder}", allow_not_found=True)
            found = [each.base_name for each in self._fs.get_file_info(selector) if each.is_file]
            return sorted(name for name in found if drafts or not name.endswith(TMP))

    def delete(self, name: str) -> None:
        with self._told(name):
            self._fs.delete_file(f"{self._root}/{name}")

    def _chunks(self, name: str) -> Generator[bytes]:
        with self._told(name), self._input(name) as source:
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
    def _told(self, name: str = "") -> Iterator[None]:
        """The libraries below have no narrower exception in common."""
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
    """Raises SettingError for a scheme that nothing here knows, SnapshotFailed."""
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
    path = re.sub("^file:(//(localhost)?)?", "", uri)  # with ? and #, which are letters here
    return LinkFiles(Path(path if path == uri else unquote(path)), uri)


def absolute(uri: str) -> str:
    """The same in a process with another current folder."""
    return uri if "://" in uri or uri.startswith("file:") else os.path.abspath(uri)


def masked(uri: str) -> str:
    """Without what may be a secret: `s3://***@bucket/folder?region=eu`."""
    return SECRET.sub(lambda found: f"{found[1] or found[3]}***", uri)


def hidden(text: str, uri: str) -> str:
    """What a library said of this URI, in one line and without what may be a secret in it."""
    for _, user, _, value in SECRET.findall(uri):
        for secret in filter(None, (user and f"{user}@", user.partition(":")[2], value)):
            for form in (secret, unquote_plus(secret)):
                text = text.replace(form, "***@" if form.endswith("@") else "***")
    return " ".join(text.split())


class LinkFiles(SnapshotFiles):
    """A folder of this machine, or one that is mounted. Readers and writers share its blocks."""

    def __init__(self, root: Path, uri: str) -> None:
        self._folder = root
        self.uri = uri
        self._given = uri

    def publish(self, local: Path, name: str) -> None:
        with self._told(name):
            place(local, target := self._target(name))
            sync_folder(target.parent)

    def fetch(self, name: str, local: Path, step: Step = bool) -> None:
        with self._told(name):
            there = local.exists() or linked(self._folder / name, local)
        if not there:
            super().fetch(name, local, step)

    def create(self, name: str, data: bytes) -> None:
        with self._told(name):
            with drafted(target := self._target(name), name_once) as file:
                file.write(data)
            sync_folder(target.parent)

    def names(self, folder: str, *, drafts: bool = False) -> list[str]:
        with self._told(folder):
            path = self._folder / folder
            found = [
                each.name for each in (path.iterdir() if path.is_dir() else ()) if each.is_file()
            ]
            return sorted(name for name in found if drafts or not name.endswith(TMP))

    def delete(self, name: str) -> None:
        with self._told(name):
            (self._folder / name).unlink()

    def _target(self, name: str) -> Path:
        """Its folder is there, also after a power loss."""
        target = self._folder / name
        new = [folder for folder in target.parents if not folder.exists()]
        target.parent.mkdir(parents=True, exist_ok=True)
        for folder in new:
            sync_folder(folder.parent)
        return target

    def _input(self, name: str) -> IO[bytes]:
        return (self._folder / name).open("rb")


def file_system(uri: str) -> Any:
    """Of pyarrow, or of fsspec as pyarrow sees it; and the root. Raises SettingError."""
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
    """A link, else a copy that appears whole. FileExistsError."""
    if not linked(source, target):
        with source.open("rb") as old, drafted(target) as new:
            shutil.copyfileobj(old, new, CHUNK_BYTES)


def linked(source: Path, target: Path) -> bool:
    """False where none can be made."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in NO_LINK:
            raise
        return False
    return True


def name_once(draft: Path, target: Path) -> None:
    """FileExistsError. Where no link can be made, who comes between look and rename is overwritten,
    as on object stores.
    """
    if not linked(draft, target):
        if target.exists():
            raise FileExistsError(errno.EEXIST, "is there already", str(target))
        draft.replace(target)


@contextmanager
def drafted(target: Path, settle: Callable[[Path, Path], object] = os.replace) -> Iterator[Any]:
    """A file that has its name when it is whole, and on the disk."""
    draft = target.with_name(f"{target.name}.{uuid.uuid4().hex}{TMP}")
    try:
        with draft.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        settle(draft, target)
    finally:
        draft.unlink(missing_ok=True)
