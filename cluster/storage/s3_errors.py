"""Classifies the errors of S3 as transient or not, and explains to users what to do about the latter."""

import http.client
from http import HTTPStatus
from typing import Any

from boto3.exceptions import RetriesExceededError, S3UploadFailedError
from botocore import exceptions as botocore_errors
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from cluster.storage import aws_credentials, retries
from schemas.errors import StorageError, StorageFullError

_THROTTLED = {"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "RequestTimeout"}
_CONFLICT = {"ConditionalRequestConflict", "OperationAborted"}
_NOT_IMPLEMENTED = {"NotImplemented", "501"}
_FULL = {"QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "507"}
"""Codes of Ceph, of MinIO, and of others that send HTTP status 507 without a code."""
_MISSING = {"NoSuchKey", "NotFound", "404"}
_REFUSED = (
    "the store refused the credentials ({code}); "
    "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL_S3"
)
_EXPIRED = (
    "the credentials have expired ({code}); renew them (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and"
    " AWS_SESSION_TOKEN) and rerun the same command"
)
_DENIED = "access denied for the key in AWS_ACCESS_KEY_ID"
_ELSEWHERE = "the bucket is in another region; check AWS_REGION"
_CHANGED = "the object changed while it was read"
_REDIRECT_LOOP = "redirect loop; check AWS_ENDPOINT_URL_S3 and AWS_REGION"
_LACKS = (
    "the store does not implement this request ({code}); bertmill needs conditional puts (If-None-Match), "
    "which keep two jobs from overwriting each other"
)
_MEANING = {
    "NoSuchBucket": "the bucket {bucket!r} does not exist",
    "InvalidAccessKeyId": _REFUSED,
    "SignatureDoesNotMatch": _REFUSED,
    "ExpiredToken": _EXPIRED,
    "InvalidToken": _REFUSED,
    "AccessDenied": _DENIED,
    "Forbidden": _DENIED,
    "403": _DENIED,
    "PermanentRedirect": _ELSEWHERE,
    "AuthorizationHeaderMalformed": _ELSEWHERE,
    "301": _ELSEWHERE,
    "NotImplemented": _LACKS,
    "501": _LACKS,
    "PreconditionFailed": _CHANGED,
    "412": _CHANGED,
}


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, botocore_errors.ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if error_code(error) in _NOT_IMPLEMENTED or status == 501 or _is_full(error):
            return False
        return status >= 500 or status == 429 or error_code(error) in _THROTTLED | _CONFLICT
    if isinstance(error, botocore_errors.NoCredentialsError | botocore_errors.CredentialRetrievalError):
        return aws_credentials.is_service_fault(error)
    if isinstance(error, S3UploadFailedError):
        return error.__context__ is not None and is_transient(error.__context__)
    return not _is_redirect_loop(error) and isinstance(
        error,
        botocore_errors.HTTPClientError
        | botocore_errors.ConnectionError  # not a subclass of the one above
        | botocore_errors.IncompleteReadError
        | botocore_errors.FlexibleChecksumError
        | RetriesExceededError  # of a download in parts, after its own five attempts
        | ResponseParserError
        | retries.HalfAnswerError
        | HTTPError
        | http.client.HTTPException
        | ConnectionError
        | TimeoutError,
    )


def _is_redirect_loop(error: BaseException | None) -> bool:
    """Whether redirects form a loop, which botocore follows with unlimited recursion.

    The stack may overflow inside the HTTP client, which wraps the RecursionError in its own error.
    """
    while error is not None and not isinstance(error, RecursionError):
        error = error.__context__
    return error is not None


def error_code(error: Any) -> str:
    """The code of a ClientError, such as NoSuchKey."""
    return str(error.response.get("Error", {}).get("Code", ""))


def _is_full(error: botocore_errors.ClientError) -> bool:
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return error_code(error) in _FULL or status == HTTPStatus.INSUFFICIENT_STORAGE


def explained(error: BaseException, uri: str, operation: str) -> Exception:
    """An error that tells a user what to do, without secrets."""
    if _is_redirect_loop(error):
        return StorageError(f"{uri}: {operation}: {_REDIRECT_LOOP}")
    if isinstance(error, S3UploadFailedError) and error.__context__ is not None:
        return explained(error.__context__, uri, operation)
    if isinstance(error, botocore_errors.NoCredentialsError | botocore_errors.PartialCredentialsError):
        return StorageError(
            f"{uri}: {operation}: no S3 credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if not isinstance(error, botocore_errors.ClientError):
        return StorageError(f"{uri}: {operation}: {retries.one_line(error)}")
    code = error_code(error)
    if code in _MISSING:
        return FileNotFoundError(uri)
    message = " ".join(str(error.response.get("Error", {}).get("Message", "")).split())
    if _is_full(error):
        return StorageFullError(f"{uri}: {operation}: the store is full or its quota is used up ({code})")
    what = _MEANING.get(code, f"{code}: {message}".rstrip(": "))
    bucket = uri.removeprefix("s3://").partition("/")[0]
    return StorageError(f"{uri}: {operation}: {what.format(bucket=bucket, code=code)}")
