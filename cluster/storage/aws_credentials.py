"""Decides whether missing AWS credentials are a transient fault of their service or a user's mistake.

Machines and pods get their credentials over HTTP: from EC2's instance metadata, from ECS or from the EKS Pod
Identity agent. A busy service must not end a long job. botocore queries instance metadata once and reports
an error as "no credentials", so this module queries the service again.
"""

import os
import re
from http import HTTPStatus

import requests
from botocore.exceptions import CredentialRetrievalError, NoCredentialsError

TIMEOUT_SECONDS = 1.0
"""botocore's own limit for instance metadata."""

_DEFAULT_ENDPOINT = "http://169.254.169.254"
_SERVICES = ("container-role", "iam-role")
_STATUS = re.compile(r"non 200 response (\d{3})")


def is_service_fault(error: BaseException) -> bool:
    """Whether the credentials may be available later.

    >>> busy = "Error when retrieving credentials: Received non 200 response 503 from container metadata"
    >>> is_service_fault(CredentialRetrievalError(provider="container-role", error_msg=busy))
    True
    >>> is_service_fault(
    ...     CredentialRetrievalError(provider="container-role", error_msg="non 200 response 404")
    ... )
    False
    """
    if isinstance(error, NoCredentialsError):
        return instance_has_role()
    if not isinstance(error, CredentialRetrievalError) or error.kwargs["provider"] not in _SERVICES:
        return False
    status = _STATUS.search(str(error))
    return status is None or _is_busy(int(status[1]))


def instance_has_role() -> bool:
    """Whether instance metadata is reachable and has a role for this machine, or is too busy to answer."""
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return False
    root = (os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or _DEFAULT_ENDPOINT).rstrip("/")
    lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    try:
        token = requests.put(f"{root}/latest/api/token", headers=lifetime, timeout=TIMEOUT_SECONDS)
        # Old services have no tokens and refuse this request, but answer the next one without a token.
        headers = {"X-aws-ec2-metadata-token": token.text} if token.ok else {}
        role = requests.get(
            f"{root}/latest/meta-data/iam/security-credentials/", headers=headers, timeout=TIMEOUT_SECONDS
        )
    except requests.ReadTimeout:
        return True  # a service accepted the connection
    except requests.RequestException:
        return False
    return role.ok or _is_busy(token.status_code) or _is_busy(role.status_code)


def _is_busy(status: int) -> bool:
    return status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR
