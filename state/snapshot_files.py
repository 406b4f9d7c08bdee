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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from streamsx.errors import SettingError, SnapshotFailed, StreamsxError

CHUNK_BYTES: Final = 4 << 20
NO_LINK: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP})
"""The other place is on another disk, or takes no links."""
OBJECT_STORES: Final = frozenset({"s3", "gcs", "abfs"})
"""Have no folders; pyarrow would make objects of their names."""
HARMLESS: Final = frozenset({"region", "endpoint_override", "scheme", "allow_bucket_creation"})
"""What may be told of the query of a URI."""
DELAYED: Final = "allow_delayed_open"
TMP: Final = ".tmp"

Step = Callable[[], object]
"""Called now and then while a file is copied; what it raises ends that."""


class SnapshotFiles(Protocol):
    """Files by their names under `uri`, which may be shown. All raise SnapshotFailed."""

    uri: str

    def publish(self, local: Path, name: str) -> None:
        """A copy of a local file under a name that nobody has used."""

    def fetch(self, name: str, local: Path, step: Step = bool) -> None:
        """A copy of it here, whole or not at all; one that is here already is one."""

    def create(self, name: str, data: bytes) -> None:
        """All of it, or nothing; FileExistsError when the name is taken. On object stores who comes
        between look and write is overwritten.
        """

    def read(self, name: str) -> bytes: ...

    def names(self, folder: str) -> list[str]:
        """Of the files in it, sorted; none of a folder that is not there."""

    def delete(self, name: str) -> None: ...


def open_files(uri: str) -> SnapshotFiles:
    """Raises SettingError for a scheme that nothing here knows, SnapshotFailed."""
    parts = urlsplit(uri)
    if parts.scheme in ("", "file"):
        if parts.netloc not in ("", "localhost"):
            raise SettingError(
                f"snapshots on another host: {masked(uri)}: write file:///FOLDER, or a scheme that "
                "reaches it"
            )
        return LinkFiles(Path(unquote(parts.path) if parts.scheme else uri), uri)
    return ArrowFiles(uri)


def masked(uri: str) -> str:
    """Without what may be a secret: `s3://***@bucket/folder?region=eu`."""
    parts = urlsplit(uri)
    netloc = re.sub(".*@", "***@", parts.netloc)
    query = [(k, v if k in HARMLESS else "***") for k, v in parse_qsl(parts.query)]
    return parts._replace(netloc=netloc, query=urlencode(query, safe="*:/")).geturl()


def hidden(text: str, uri: str) -> str:
    """What a library said of this URI, in one line and without what may be a secret in it."""
    parts = urlsplit(uri)
    query = (value for name, value in parse_qsl(parts.query) if name not in HARMLESS)
    for secret in filter(None, (parts.password, *query)):
        uri, text = uri.replace(secret, "***"), text.replace(secret, "***")
    return " ".join(text.split())


class LinkFiles(SnapshotFiles):
    """A folder of this machine, or one that is mounted. Readers and writers share its blocks."""

    def __init__(self, root: Path, uri: str) -> None:
        self._root, self.uri = root, uri

    def publish(self, local: Path, name: str) -> None:
        with self._told(name):
            place(local, target := self._target(name))
            sync(target.parent)

    def fetch(self, name: str, local: Path, step: Step = bool) -> None:
        with self._told(name), suppress(FileExistsError):
            place(self._root / name, local, step)

    def create(self, name: str, data: bytes) -> None:
        with self._told(name):
            target = self._target(name)
            draft = target.with_name(f"{target.name}.{uuid.uuid4().hex}{TMP}")
            try:
                with draft.open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.link(draft, target)
            finally:
                draft.unlink(missing_ok=True)
            sync(target.parent)

    def read(self, name: str) -> bytes:
        with self._told(name):
            return (self._root / name).read_bytes()

    def names(self, folder: str) -> list[str]:
        with self._told(folder):
            path = self._root / folder
            found = path.iterdir() if path.is_dir() else ()
            return sorted(each.name for each in found if each.is_file() and each.suffix != TMP)

    def delete(self, name: str) -> None:
        with self._told(name):
            (self._root / name).unlink()

    def _target(self, name: str) -> Path:
        """Its folder is there, also after a power loss."""
        target = self._root / name
        new = [folder for folder in target.parents if not folder.exists()]
        target.parent.mkdir(parents=True, exist_ok=True)
        for folder in new:
            sync(folder.parent)
        return target

    @contextmanager
    def _told(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileExistsError:
            raise
        except OSError as error:
            raise failed(self.uri, name, error.strerror or str(error)) from error


class ArrowFiles(SnapshotFiles):
    """Object stores, HDFS and whatever fsspec knows."""

    def __init__(self, uri: str) -> None:
        self._given, self.uri = uri, masked(uri)
        with self._told(""):
            self._fs, root = file_system(uri)
        self._root = root.rstrip("/")

    def publish(self, local: Path, name: str) -> None:
        """Torn, it is under a name that no manifest has."""
        with self._told(name), local.open("rb") as source, self._output(name) as target:
            shutil.copyfileobj(source, target, CHUNK_BYTES)

    def fetch(self, name: str, local: Path, step: Step = bool) -> None:
        if local.exists():
            return
        draft = local.with_name(f"{local.name}.{uuid.uuid4().hex}{TMP}")
        try:
            with self._input(name) as source, draft.open("xb") as target:
                while chunk := self._chunk(source, name):
                    target.write(chunk)
                    step()
            draft.rename(local)
        finally:
            draft.unlink(missing_ok=True)

    def create(self, name: str, data: bytes) -> None:
        """One write of all: leaving the stream by an error would complete a torn one."""
        folder, _, base = name.rpartition("/")
        if base in self.names(folder):
            raise FileExistsError(errno.EEXIST, "is there already", name)
        with self._told(name), self._output(name) as target:
            target.write(data)

    def read(self, name: str) -> bytes:
        with self._input(name) as source, self._told(name):
            return bytes(source.read())

    def names(self, folder: str) -> list[str]:
        from pyarrow import fs

        with self._told(folder):
            selector = fs.FileSelector(f"{self._root}/{folder}", allow_not_found=True)
            found = self._fs.get_file_info(selector)
            return sorted(each.base_name for each in found if each.is_file)

    def delete(self, name: str) -> None:
        with self._told(name):
            self._fs.delete_file(f"{self._root}/{name}")

    def _input(self, name: str) -> Any:
        with self._told(name):
            return self._fs.open_input_stream(f"{self._root}/{name}")

    def _chunk(self, source: Any, name: str) -> bytes:
        with self._told(name):
            return bytes(source.read(CHUNK_BYTES))

    def _output(self, name: str) -> Any:
        path = f"{self._root}/{name}"
        if self._fs.type_name not in OBJECT_STORES:
            self._fs.create_dir(path.rpartition("/")[0], recursive=True)
        return self._fs.open_output_stream(path)

    @contextmanager
    def _told(self, name: str) -> Iterator[None]:
        """The libraries below have no narrower exception in common."""
        try:
            yield
        except StreamsxError:
            raise
        except Exception as error:
            why = hidden(str(error) or type(error).__name__, self._given)
            raise failed(self.uri, name, why) from None


def file_system(uri: str) -> tuple[Any, str]:
    """Of pyarrow, or of fsspec as pyarrow sees it; and the root. Raises SettingError."""
    scheme, shown = urlsplit(uri).scheme, masked(uri)
    try:
        import pyarrow as pa
        from pyarrow import fs
    except ImportError:
        raise SettingError(
            f"pyarrow is not installed: {shown}: pip install -e '.[snapshots]'"
        ) from None
    try:
        system, path = fs.FileSystem.from_uri(uri + delayed_open(uri))
    except pa.ArrowInvalid as error:
        why = hidden(str(error), uri)
    else:
        return system, str(path)
    try:
        import fsspec

        inner, root = fsspec.core.url_to_fs(uri)
    except (ImportError, ValueError):
        raise SettingError(
            f"cannot reach {scheme}: {shown}: {why}: use file: or s3:, or install fsspec and what "
            f"it needs for {scheme}"
        ) from None
    return fs.PyFileSystem(fs.FSSpecHandler(inner)), str(root)


def delayed_open(uri: str) -> str:
    """For S3: what is small is one request, and not an upload in parts."""
    parts = urlsplit(uri)
    if parts.scheme != "s3" or DELAYED in parts.query:
        return ""
    return f"{'&' if parts.query else '?'}{DELAYED}=true"


def failed(uri: str, name: str, why: str) -> SnapshotFailed:
    """The world's."""
    where = f"{uri}/{name}".rstrip("/")
    return SnapshotFailed(f"snapshot cannot be read or written: {where}: {why}: see that it is up")


def place(source: Path, target: Path, step: Step = bool) -> None:
    """A link, else a copy that appears whole. FileExistsError."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in NO_LINK:
            raise
        draft = target.with_name(f"{target.name}.{uuid.uuid4().hex}{TMP}")
        try:
            with source.open("rb") as old, draft.open("xb") as new:
                while chunk := old.read(CHUNK_BYTES):
                    new.write(chunk)
                    step()
                new.flush()
                os.fsync(new.fileno())
            draft.rename(target)
        finally:
            draft.unlink(missing_ok=True)


def sync(folder: Path) -> None:
    """What was named in it is there after a power loss."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
