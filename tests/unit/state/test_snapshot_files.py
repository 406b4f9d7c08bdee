"""Snapshot files on local folders, and on file systems of pyarrow and fsspec."""

import builtins
import errno
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamsx.errors import SettingError, SnapshotFailed
from streamsx.state.snapshot_files import LinkFiles, SnapshotFiles, masked, open_files


@pytest.fixture(params=["links", "arrow", "memory"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> SnapshotFiles:
    if request.param == "links":
        return open_files(f"file://{tmp_path}/new%20place/here")
    if request.param == "arrow":
        return SnapshotFiles(f"file://{tmp_path}/there")
    pytest.importorskip("fsspec")
    return open_files(f"memory://{uuid.uuid4().hex}/here")


def refuse_links(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def link(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", link)


SIZE = 11_000_000  # several chunks; on S3, an upload in parts


def test_published_file_is_listed_read_fetched_and_deleted(
    files: SnapshotFiles, tmp_path: Path
) -> None:
    (local := tmp_path / "local").write_bytes(content := os.urandom(SIZE))
    assert files.names("sst/totals/0") == []
    for name in ("b", "a"):
        files.publish(local, f"sst/totals/0/{name}")
    files.create("sst/totals/1/c", b"")
    assert files.names("sst/totals/0") == ["a", "b"]
    assert (files.read("sst/totals/0/b"), files.read("sst/totals/1/c")) == (content, b"")
    for _ in range(2):  # what has come already is fetched
        files.fetch("sst/totals/0/a", tmp_path / "came")
    assert (tmp_path / "came").read_bytes() == content
    files.delete("sst/totals/0/a")
    assert files.names("sst/totals/0") == ["b"]
    assert (tmp_path / "came").read_bytes() == content


def test_existing_name_cannot_be_created_again(files: SnapshotFiles) -> None:
    files.create("manifests/1.json", b"first")
    with pytest.raises(FileExistsError):
        files.create("manifests/1.json", b"second")
    assert (files.names("manifests"), files.read("manifests/1.json")) == (["1.json"], b"first")


def test_missing_file_error_names_the_file(files: SnapshotFiles, tmp_path: Path) -> None:
    for ask in (
        lambda: files.read("sst/none"),
        lambda: files.fetch("sst/none", tmp_path / "new"),
        lambda: files.delete("sst/none"),
        lambda: files.publish(tmp_path / "none", "sst/none"),
    ):
        with pytest.raises(SnapshotFailed, match="sst/none") as told:
            ask()
        assert str(told.value).count("\n") == 0
    assert not (tmp_path / "new").exists()


def test_aborted_fetch_leaves_nothing(
    files: SnapshotFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (local := tmp_path / "local").write_bytes(b"x" * SIZE)
    files.publish(local, "a")
    refuse_links(monkeypatch, errno.EXDEV)
    chunks = iter((1, 2))
    with pytest.raises(StopIteration):
        files.fetch("a", tmp_path / "came", lambda: next(chunks))
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["local"]


# -- links


@pytest.mark.parametrize(
    "code", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS]
)
def test_file_is_copied_when_link_fails(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = LinkFiles(tmp_path / "root", "file:root")
    (local := tmp_path / "local").write_bytes(b"content")
    refuse_links(monkeypatch, code)
    files.publish(local, "sst/a")
    files.fetch("sst/a", tmp_path / "came")
    assert (tmp_path / "came").read_bytes() == b"content"
    assert (tmp_path / "came").stat().st_nlink == 1
    assert files.names("sst") == ["a"]
    test_existing_name_cannot_be_created_again(files)


def test_full_disk_raises_snapshot_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = LinkFiles(tmp_path / "root", "file:root")
    (local := tmp_path / "local").write_bytes(b"content")
    refuse_links(monkeypatch, errno.ENOSPC)
    with pytest.raises(SnapshotFailed, match="No space left"):
        files.publish(local, "sst/a")
    with pytest.raises(SnapshotFailed, match="No space left"):
        files.create("sst/b", b"")
    assert list((tmp_path / "root/sst").iterdir()) == []


class Crash(BaseException):
    """Exception like a SIGKILL: code that runs afterwards does not count."""


def test_crash_between_draft_and_link_leaves_name_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = LinkFiles(tmp_path, "file:root")

    def crash(*_: object, **_more: object) -> None:
        raise Crash

    with monkeypatch.context() as crashing:
        crashing.setattr(os, "link", crash)
        crashing.setattr(Path, "unlink", crash)
        with pytest.raises(Crash):
            files.create("manifests/1.json", b"torn")
    assert [path.suffix for path in (tmp_path / "manifests").iterdir()] == [".tmp"]
    assert files.names("manifests") == []
    files.create("manifests/1.json", b"whole")
    assert files.read("manifests/1.json") == b"whole"


def test_manifest_folder_is_synced_after_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    link, fsync = os.link, os.fsync

    def linked(source: Path, target: Path) -> None:
        done.append(f"link {target.name}")
        link(source, target)

    def synced(handle: int) -> None:
        done.append("sync " + Path(f"/proc/self/fd/{handle}").readlink().name.partition(".")[0])
        fsync(handle)

    monkeypatch.setattr(os, "link", linked)
    monkeypatch.setattr(os, "fsync", synced)
    LinkFiles(tmp_path / "root", "file:root").create("manifests/1.json", b"")
    made = ["sync root", f"sync {tmp_path.name}"]
    assert done == [*made, "sync 1", "link 1.json", "sync manifests"]


# -- what a URI may say


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Hide packages as if they were not installed."""
    real = builtins.__import__

    def hide(package: str) -> None:
        def find(name: str, *args: Any, **kwargs: Any) -> Any:
            if name.split(".")[0] == package:
                raise ImportError(name)
            return real(name, *args, **kwargs)

        monkeypatch.setattr(builtins, "__import__", find)

    return hide


def test_plain_path_opens_a_folder(tmp_path: Path) -> None:
    files = open_files(str(tmp_path / "100%20"))
    files.create("a", b"")
    assert (tmp_path / "100%20" / "a").exists()


@pytest.mark.parametrize("name", ["a#1", "a?x=1", "a%41", "a b", "ä"])
def test_special_characters_in_folder_name_are_kept(name: str, tmp_path: Path) -> None:
    for uri in (f"{tmp_path}/{name}", f"file://{tmp_path}/{name.replace('%', '%25')}/of"):
        open_files(uri).create("it", b"")
    assert (tmp_path / name / "it").exists()
    assert (tmp_path / name / "of" / "it").exists()


def test_crash_during_write_leaves_no_partial_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HDFS shows a file while it is written."""
    files = SnapshotFiles(f"file://{tmp_path}/there")
    output = files._output

    def torn(name: str) -> None:
        with output(name) as target:
            target.write(b"to")
        raise Crash

    with monkeypatch.context() as crashing:
        crashing.setattr(files, "_output", torn)
        with pytest.raises(Crash):
            files.create("manifests/1.json", b"torn")
    assert files.names("manifests") == []
    files.create("manifests/1.json", b"whole")
    assert files.read("manifests/1.json") == b"whole"


@pytest.mark.parametrize(
    ("uri", "missing", "told"),
    [
        ("s3://bucket/place", "pyarrow", r"not installed: s3://bucket/place: .*\[snapshots\]"),
        ("memory://place", "fsspec", "cannot reach memory: memory://place: .*install fsspec"),
        ("foo://u:p@place", "fsspec", r"cannot reach foo: foo://\*\*\*@place: "),
        ("foo://u:p@place", "none", r"cannot reach foo: foo://\*\*\*@place: "),
        ("foo://TOKENp@place", "none", r"cannot reach foo: foo://\*\*\*@place: "),
        ("foo://place?x=p%2Fp@", "none", r"cannot reach foo: foo://place\?x=\*\*\*: "),
        ("s3://u:a/p@place", "none", r"cannot reach s3: s3://\*\*\*@place: "),
        ("s3://u:p@[place", "none", r"not a URI: s3://\*\*\*@\[place: "),
        ("file://host/place", "none", "on another host: file://host/place: write file:///"),
    ],
)
def test_unreachable_uri_error_is_one_line_with_remedy(
    uri: str, missing: str, told: str, without: Callable[[str], None]
) -> None:
    without(missing)
    with pytest.raises(SettingError, match=told) as error:
        open_files(uri)
    assert "\n" not in str(error.value)
    assert "p@" not in str(error.value)
    assert "p%2F" not in str(error.value)
    assert "TOKEN" not in str(error.value)


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("s3://key:secret@b/p?region=eu&scheme=http", "s3://***@b/p?region=eu&scheme=http"),
        ("abfs://c@account/p?sas=secret", "abfs://***@account/p?sas=***"),
        ("s3://b/p?endpoint_override=127.0.0.1:1", "s3://b/p?endpoint_override=127.0.0.1:1"),
        ("memory://b/p", "memory://b/p"),
        ("/data/snapshots", "/data/snapshots"),
    ],
)
def test_credentials_are_masked_in_uri(uri: str, shown: str) -> None:
    assert masked(uri) == shown


@pytest.mark.slow
def test_unreachable_store_error_masks_credentials() -> None:
    endpoint = "endpoint_override=127.0.0.1:1&scheme=http&region=eu"
    files = open_files(f"s3://key:geheim@bucket/place?{endpoint}")
    with pytest.raises(SnapshotFailed, match=r"s3://\*\*\*@bucket/place") as told:
        files.read("manifests/1.json")
    assert "geheim" not in str(told.value)


# -- S3, when there is a double of it


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = pytest.importorskip("moto.server")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    s3 = server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    s3.start()
    host, port = s3.get_host_and_port()
    yield (
        f"s3://bucket/place?endpoint_override={host}:{port}&scheme=http&region=us-east-1"
        "&allow_bucket_creation=true"
    )
    s3.stop()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_snapshot_files_work_on_s3(bucket: str, tmp_path: Path) -> None:
    from pyarrow import fs

    store, path = fs.FileSystem.from_uri(bucket)
    store.create_dir(path.split("/")[0])
    test_published_file_is_listed_read_fetched_and_deleted(open_files(bucket), tmp_path)
    test_existing_name_cannot_be_created_again(open_files(bucket))
    test_missing_file_error_names_the_file(open_files(bucket), tmp_path)
