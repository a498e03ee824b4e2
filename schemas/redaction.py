"""Keeps passwords and signed query strings of URLs out of errors, logs and files."""

import re
from typing import Any

_USER_INFO = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*://)[^/?#\s]*@")
# Only in web addresses: in s3:// and gs:// a "?" is part of a pattern. HTTP libraries also print the path and
# query without the host.
_QUERY = re.compile(r"(https?://[^\s?'\"<>]*|\burl: /[^\s?]*)\?[^\s'\"<>)]*[^\s'\"<>):]")


def redact(text: str) -> str:
    """``text`` with the user info and the query of every URL in it replaced by ``***``.

    >>> redact("https://user:password@host/dump.xml.bz2?X-Amz-Signature=ab12: no such file")
    'https://***@host/dump.xml.bz2?***: no such file'
    """
    return _QUERY.sub(r"\1?***", _USER_INFO.sub(r"\1***@", text))


def public_uri(uri: str) -> str:
    """``uri`` without user info and, for web addresses, without the query. For names, keys and manifests.

    >>> public_uri("https://user:password@host/dump.xml.bz2?X-Amz-Signature=ab12")
    'https://host/dump.xml.bz2'
    >>> public_uri("s3://bucket/dumps/?.xml")
    's3://bucket/dumps/?.xml'
    """
    shown = _USER_INFO.sub(r"\1", uri)
    return shown.partition("?")[0] if has_query(shown) else shown


def has_query(uri: str) -> bool:
    """Whether ``uri`` is a web address with a query, such as a signed URL. Other files need other signatures.

    >>> has_query("https://host/dump.xml.bz2?X-Amz-Signature=ab12")
    True
    >>> has_query("s3://bucket/dumps/?.xml")
    False
    """
    return "?" in uri and uri.lower().startswith(("http://", "https://"))


def public_fields(value: Any) -> Any:
    """``value`` with `public_uri` applied to all URIs in it. For configs in manifests and hashes."""
    if isinstance(value, str):
        return public_uri(value) if "://" in value else value
    if isinstance(value, dict):
        return {key: public_fields(item) for key, item in value.items()}
    return [public_fields(item) for item in value] if isinstance(value, list | tuple) else value
