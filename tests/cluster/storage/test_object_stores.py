"""Tests features of only S3 and Google Cloud Storage: credentials, versions, listings, unfinished uploads."""

import os
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from cluster import storage
from cluster.storage import s3
from schemas.errors import StorageError
from tests.support.s3_server import BUCKET, READER_KEY, READER_SECRET, S3Server


@pytest.mark.s3
def test_a_change_under_an_open_file_is_an_error(s3_folder: str) -> None:
    uri = storage.join(s3_folder, "changing")
    storage.put_bytes(uri, b"a" * (3 << 20))
    with storage.open_read(uri) as file:
        assert file.read(1) == b"a"
        storage.put_bytes(uri, b"b" * (3 << 20))
        file.seek(2 << 20)
        with pytest.raises(StorageError, match="changed while it was read"):
            file.read(1)


@pytest.mark.s3
@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "refused the credentials"),
        ({"AWS_ACCESS_KEY_ID": "nobody"}, "refused the credentials"),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "no S3 credentials; set AWS_ACCESS_KEY_ID"),
        ({"AWS_ACCESS_KEY_ID": READER_KEY, "AWS_SECRET_ACCESS_KEY": READER_SECRET}, "access denied"),
    ],
)
def test_credentials_that_do_not_fit_are_explained_and_not_shown(
    s3_folder: str, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    for name, value in variables.items():
        if value:
            monkeypatch.setenv(name, value)
        else:
            monkeypatch.delenv(name)
    uri = storage.join(s3_folder, "x")
    with pytest.raises(StorageError, match=message) as caught:
        storage.put_bytes(uri, b"x")
    assert uri in str(caught.value)
    assert "\n" not in str(caught.value)
    assert os.environ.get("AWS_SECRET_ACCESS_KEY", "testsecret") not in str(caught.value)


@pytest.mark.s3
def test_a_reader_may_read(s3_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = storage.join(s3_folder, "x")
    storage.put_bytes(uri, b"x")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", READER_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", READER_SECRET)
    assert storage.read_bytes(uri) == b"x"
    for write in (storage.put_if_absent, storage.put_bytes):
        with pytest.raises(StorageError, match="access denied"):
            write(uri, b"y")


@pytest.mark.s3
def test_a_missing_bucket_is_named(s3_server: S3Server) -> None:
    for call in (
        lambda: storage.put_bytes("s3://no-such-bucket/x", b"x"),
        lambda: storage.list_files("s3://no-such-bucket/x"),
        lambda: storage.read_bytes("s3://no-such-bucket/x"),
        lambda: storage.put_if_absent("s3://no-such-bucket/x", b"x"),
    ):
        with pytest.raises(StorageError, match="the bucket 'no-such-bucket' does not exist"):
            call()
    with pytest.raises(StorageError, match="s3://BUCKET/KEY"):
        storage.read_bytes("s3://")


@pytest.mark.s3
def test_listings_and_deletions_of_many_pages(s3_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"n{number:04d}" for number in range(1100)]
    client = s3.client()
    key = s3_folder.removeprefix(f"s3://{BUCKET}/")

    def put(part: list[str]) -> None:
        for name in part:
            client.put_object(Bucket=BUCKET, Key=f"{key}/{name}", Body=b"")

    threads = [threading.Thread(target=put, args=(names[start::8],)) for start in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [info.uri for info in storage.list_files(s3_folder)] == [f"{s3_folder}/{name}" for name in names]
    storage.delete_prefix(s3_folder)
    assert storage.list_files(s3_folder) == []


@pytest.mark.s3
def test_abandoned_uploads_are_ended(s3_folder: str) -> None:
    client = s3.client()
    key = s3_folder.removeprefix(f"s3://{BUCKET}/")
    upload = client.create_multipart_upload(Bucket=BUCKET, Key=f"{key}/half")
    client.upload_part(
        Bucket=BUCKET, Key=f"{key}/half", UploadId=upload["UploadId"], PartNumber=1, Body=b"x" * (5 << 20)
    )
    assert storage.list_files(s3_folder) == []
    assert storage.abort_uploads(s3_folder, older_than=0) == 0
    assert storage.abort_uploads(s3_folder, older_than=4e9) == 1
    assert storage.abort_uploads(s3_folder, older_than=4e9) == 0


@pytest.mark.s3
def test_all_pages_of_abandoned_uploads_are_ended(s3_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client, key = s3.client(), s3_folder.removeprefix(f"s3://{BUCKET}/")
    for name in ("a", "b", "b", "c/d"):
        client.create_multipart_upload(Bucket=BUCKET, Key=f"{key}/{name}")
    listing = client.list_multipart_uploads
    monkeypatch.setattr(client, "list_multipart_uploads", partial(listing, MaxUploads=1))
    assert storage.abort_uploads(s3_folder, older_than=4e9) == 4
    assert storage.abort_uploads(s3_folder, older_than=4e9) == 0


@pytest.mark.s3
def test_sets_in_patterns_mean_the_same_everywhere(s3_folder: str, tmp_path: Path) -> None:
    names = ["a", "b", "^", "-", "!", "&", "[", "]", "z"]
    for folder in (s3_folder, str(tmp_path)):
        for name in names:
            storage.put_bytes(storage.join(folder, f"x{name}"), b"")
            storage.put_bytes(storage.join(folder, "x", name), b"")
    sets = [
        "[^a]",
        "[z-a]",
        "[!a]",
        "[!^]",
        "[[]",
        "[]]",
        "[!]]",
        "[a&&b]",
        "[a-]",
        "[!",
        "[]",
        "[",
        "[a-z]",
        "[--b]",
    ]
    for pattern in sets:
        found = {
            folder: [uri.removeprefix(folder) for uri in storage.expand_glob(f"{folder}/x{pattern}")]
            for folder in (s3_folder, str(tmp_path))
        }
        assert found[s3_folder] == found[str(tmp_path)], pattern


def test_a_missing_gs_bucket_is_named(gs_folder: str) -> None:
    for call in (
        lambda: storage.put_bytes("gs://no-such-bucket/x", b"x"),
        lambda: storage.list_files("gs://no-such-bucket/x"),
        lambda: storage.put_if_absent("gs://no-such-bucket/x", b"x"),
    ):
        with pytest.raises(StorageError, match="gs://no-such-bucket/x"):
            call()


def test_gs_without_its_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.cloud.storage", None)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    with pytest.raises(StorageError, match=r"pip install 'bertmill\[gs\]'"):
        storage.read_bytes("gs://bucket/x")
