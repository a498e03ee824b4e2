"""S3-compatible object storage, configured by the four AWS variables or by the credentials of a machine.

This module uses boto3 instead of smart-open. Conditional puts need the call itself, and a stream must stay
with the version of the object that it opened (If-Match), which smart-open's reader does not.
"""

import os
import secrets
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import boto3.session
from boto3.exceptions import S3UploadFailedError
from boto3.s3.transfer import TransferConfig
from botocore import exceptions as botocore_errors
from botocore.config import Config

from cluster.storage import ranged, retries
from cluster.storage.entries import FileInfo
from cluster.storage.s3_errors import error_code, explained, is_transient
from schemas.errors import StorageError

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
"""Maximum silence of the server during a request."""

_PART_BYTES = 32 << 20
_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ENDPOINT_URL_S3")

Result = TypeVar("Result")
_clients: dict[tuple[Any, ...], Any] = {}
_clients_lock = threading.Lock()


def client() -> Any:
    """The thread-safe boto3 client of this process for the current values of the variables."""
    key = (os.getpid(), CONNECT_SECONDS, READ_SECONDS, *(os.environ.get(name) for name in _VARIABLES))
    with _clients_lock:
        if key not in _clients:
            _clients[key] = _new_client()
        return _clients[key]


def _new_client() -> Any:
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3")
    config = Config(
        # botocore retries immediately, within its token bucket. retries.call adds the long budget.
        retries={"mode": "standard", "total_max_attempts": 3},
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        max_pool_connections=64,
        tcp_keepalive=True,
        # Self-hosted servers rarely have a DNS name for each bucket.
        s3={"addressing_style": "path" if endpoint else "auto"},
    )
    # botocore itself reads only AWS_DEFAULT_REGION.
    session = boto3.session.Session(region_name=os.environ.get("AWS_REGION"))
    if session.get_credentials() is None:
        # A client keeps its initial credentials, so one without credentials must not stay in the cache.
        raise botocore_errors.NoCredentialsError
    try:
        return session.client("s3", endpoint_url=endpoint, config=config)
    except ValueError as error:
        raise StorageError(f"AWS_ENDPOINT_URL_S3: {retries.one_line(error)}") from error


def split(uri: str) -> tuple[str, str]:
    """Bucket and key of an s3:// URI. Raises StorageError without a bucket."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    if not bucket:
        raise StorageError(f"{uri}: must have the form s3://BUCKET/KEY")
    return bucket, key


def _call(uri: str, operation: str, action: Callable[[], Result]) -> Result:
    try:
        return retries.call(action, transient=is_transient, what=f"{uri}: {operation}")
    except (
        botocore_errors.BotoCoreError,
        botocore_errors.ClientError,
        S3UploadFailedError,
        RecursionError,
    ) as error:
        raise explained(error, uri, operation) from error


def _send(method: str, **request: Any) -> dict[str, Any]:
    # Look the client up at each attempt, because it may have lacked credentials at the last one.
    answer: dict[str, Any] = getattr(client(), method)(**request)
    return answer


def read_bytes(uri: str) -> bytes:
    """The whole object."""
    bucket, key = split(uri)

    def get() -> bytes:
        data: bytes = client().get_object(Bucket=bucket, Key=key)["Body"].read()
        return data

    return _call(uri, "read", get)


def read_range(uri: str, start: int, length: int, etag: str | None = None) -> bytes:
    """``length`` bytes from ``start``, fewer at the end. With ``etag``, only from that version."""
    if length <= 0:
        return b""
    bucket, key = split(uri)
    conditions = {"IfMatch": etag} if etag else {}
    conditions["Range"] = f"bytes={start}-{start + length - 1}"

    def get() -> bytes:
        try:
            answer = client().get_object(Bucket=bucket, Key=key, **conditions)
        except botocore_errors.ClientError as error:
            if error_code(error) in ("InvalidRange", "416"):
                return b""
            raise
        data: bytes = answer["Body"].read()
        ranged.check_range(answer.get("ContentRange"), start, length, len(data), uri)
        return data[:length]

    return _call(uri, "read", get)


def _head(uri: str) -> dict[str, Any]:
    bucket, key = split(uri)
    head: dict[str, Any] = _call(uri, "size", lambda: client().head_object(Bucket=bucket, Key=key))
    return head


def size(uri: str) -> int:
    """The size in bytes."""
    return int(_head(uri)["ContentLength"])


def list_files(uri: str) -> Iterator[FileInfo]:
    """Every object below the folder ``uri``, page by page."""
    bucket, key = split(uri)
    prefix = f"{key.rstrip('/')}/" if key else ""
    request: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix}
    more = True
    while more:
        page = _call(uri, "list", partial(_page, request, "ContinuationToken"))
        more, request["ContinuationToken"] = page["IsTruncated"], page.get("NextContinuationToken")
        for entry in page.get("Contents", []):
            if entry["Key"].startswith(prefix) and not entry["Key"].endswith("/"):
                name = f"s3://{bucket}/{entry['Key']}"
                yield FileInfo(name, entry["Size"], entry["LastModified"].timestamp())


def _page(request: dict[str, Any], token: str) -> dict[str, Any]:
    """One page of a listing. Raises HalfAnswerError for a malformed page, which must not count as empty."""
    page = _send("list_objects_v2", **request)
    if "IsTruncated" not in page:
        raise retries.HalfAnswerError("the response is not a listing")
    following = page.get(f"Next{token}")
    if page["IsTruncated"] and (not following or following == request.get(token)):
        raise retries.HalfAnswerError("the listing is truncated but has no continuation token")
    return page


def put_bytes(uri: str, data: bytes) -> None:
    """Writes the object in one PUT, which is atomic."""
    bucket, key = split(uri)
    _call(uri, "write", lambda: client().put_object(Bucket=bucket, Key=key, Body=data))


def put_if_absent(uri: str, data: bytes) -> bool:
    """Creates the object unless the key exists. True if this call created it.

    If the response to the first attempt is lost, a retry may find its own object. So each call stores a nonce
    in the metadata to recognize its object.
    """
    bucket, key = split(uri)
    nonce = secrets.token_hex(16)

    def put() -> bool:
        try:
            client().put_object(
                Bucket=bucket, Key=key, Body=data, IfNoneMatch="*", Metadata={"created-by": nonce}
            )
        except botocore_errors.ClientError as error:
            if error_code(error) not in ("PreconditionFailed", "412"):
                raise
            return False
        return True

    if _call(uri, "create", put):
        return True
    try:
        return bool(_head(uri).get("Metadata", {}).get("created-by") == nonce)
    except FileNotFoundError:  # another writer deleted it in between
        return False


def upload_file(local: Path, uri: str) -> None:
    """Uploads a file, in parts if it is large. A failed upload leaves no parts behind."""
    bucket, key = split(uri)
    _call(uri, "upload", lambda: client().upload_file(str(local), bucket, key, Config=_transfer()))


def download_file(uri: str, local: Path) -> None:
    """Downloads an object to ``local``, in ranges if it is large."""
    bucket, key = split(uri)
    _call(uri, "download", lambda: client().download_file(bucket, key, str(local), Config=_transfer()))


def _transfer() -> TransferConfig:
    return TransferConfig(
        multipart_threshold=2 * _PART_BYTES, multipart_chunksize=_PART_BYTES, max_concurrency=4
    )


def delete(uri: str) -> None:
    """Deletes the object. A missing object is not an error."""
    bucket, key = split(uri)
    _call(uri, "delete", lambda: client().delete_object(Bucket=bucket, Key=key))


def delete_prefix(uri: str) -> None:
    """Deletes all objects below the folder ``uri``, a thousand in a request."""
    bucket, key = split(uri)
    if not key.strip("/"):
        raise StorageError(f"{uri}: refusing to delete a whole bucket")
    keys = [info.uri.removeprefix(f"s3://{bucket}/") for info in list_files(uri)]
    for first in range(0, len(keys), 1000):
        batch = {"Objects": [{"Key": name} for name in keys[first : first + 1000]], "Quiet": True}
        answer = _call(uri, "delete", partial(_send, "delete_objects", Bucket=bucket, Delete=batch))
        for problem in answer.get("Errors", []):
            raise StorageError(f"s3://{bucket}/{problem['Key']}: delete: {problem.get('Code')}")


def abort_uploads(uri: str, older_than: float) -> int:
    """Aborts multipart uploads below ``uri`` that started before ``older_than`` (seconds since 1970).

    Killed processes leave such uploads, which are invisible but cost money. Returns their number.
    """
    bucket, key = split(uri)
    prefix = f"{key.rstrip('/')}/" if key else ""
    aborted = 0
    request: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix}
    more = True
    while more:
        page = _call(uri, "list uploads", partial(_send, "list_multipart_uploads", **request))
        markers = {name: page.get(f"Next{name}") or "" for name in ("KeyMarker", "UploadIdMarker")}
        moved = any(markers.values()) and not markers.items() <= request.items()
        more = moved and bool(page.get("IsTruncated"))
        request |= markers
        for upload in page.get("Uploads", []):
            if upload["Key"].startswith(prefix) and upload["Initiated"].timestamp() < older_than:
                name = {"Bucket": bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}
                aborted += _call(uri, "abort upload", partial(_abort, name))
    return aborted


def _abort(name: dict[str, str]) -> bool:
    """Aborts an upload. False if it has ended since it was listed."""
    try:
        client().abort_multipart_upload(**name)
    except botocore_errors.ClientError as error:
        if error_code(error) != "NoSuchUpload":
            raise
        return False
    return True


def open_raw(uri: str) -> ranged.RangedFile:
    """An unbuffered seekable file over one version of the object. A changed object is an error."""
    total, etag = _version(uri)
    return ranged.RangedFile(lambda start, length: read_range(uri, start, length, etag), total, uri)


def _version(uri: str) -> tuple[int, str]:
    """Size and ETag. Raises StorageError if the store sends no ETag."""
    head = _head(uri)
    if not head.get("ETag"):
        raise StorageError(
            f"{uri}: read: the store sends no ETag, so a change of the object would go unnoticed"
        )
    return int(head["ContentLength"]), head["ETag"]


def open_stream(uri: str) -> ranged.ResumingStream:
    """A forward stream over one version of the object that survives broken connections."""
    bucket, key = split(uri)
    total, etag = _version(uri)

    def open_at(position: int) -> IO[bytes]:
        if position >= total:
            return cast("IO[bytes]", _Empty())
        conditions = {"Range": f"bytes={position}-"} if position else {}

        def get() -> Any:
            answer = client().get_object(Bucket=bucket, Key=key, IfMatch=etag, **conditions)
            ranged.check_range(answer.get("ContentRange"), position, None, 0, uri)
            return answer["Body"]

        return cast("IO[bytes]", _call(uri, "read", get))

    return ranged.ResumingStream(open_at, is_transient, uri)


class _Empty:
    def read(self, _length: int) -> bytes:
        return b""

    def close(self) -> None:
        """Nothing to close."""
