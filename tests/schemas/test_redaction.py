"""Messages and names contain no secrets of URLs."""

import pickle

import pytest

from schemas.errors import BertmillError, StorageError
from schemas.redaction import public_uri, redact

SECRET = "aB3+/=%2F"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:S@host/a.bz2: gone", "https://***@host/a.bz2: gone"),
        ("ftp://S@host:21/a", "ftp://***@host:21/a"),
        ("sftp://user:p@S@host/a", "sftp://***@host/a"),
        ("https://host/a?X-Amz-Signature=S&Expires=3: status 403", "https://host/a?***: status 403"),
        ("'https://host/a?sig=S' and (http://host/b?c=S)", "'https://host/a?***' and (http://host/b?***)"),
        ("HTTPConnectionPool(host='h', port=80): Max retries exceeded with url: /a?sig=S (Caused by X)",
         "HTTPConnectionPool(host='h', port=80): Max retries exceeded with url: /a?*** (Caused by X)"),
        ("s3://bucket/part-?.xml", "s3://bucket/part-?.xml"),
        ("https://host/plain.bz2: why? who knows", "https://host/plain.bz2: why? who knows"),
        ("mail me@host, a/b@c", "mail me@host, a/b@c"),
    ],
)  # fmt: skip
def test_what_is_hidden(text: str, shown: str) -> None:
    text = text.replace("S@", "s3cret@").replace("=S", f"={SECRET}")
    assert redact(text) == shown
    assert redact(shown) == shown


def test_names_have_neither_user_nor_query() -> None:
    assert public_uri("https://u:p@host/a/b.bz2?sig=1#x") == "https://host/a/b.bz2"
    assert public_uri("sftp://u:p@host/a?b") == "sftp://host/a?b"
    assert public_uri("/data/what?.txt") == "/data/what?.txt"


def test_errors_hide_secrets_also_after_a_journey_between_processes() -> None:
    error = StorageError("https://user:password@host/a?sig=12: read: HTTP status 403")
    assert (
        str(error)
        == str(pickle.loads(pickle.dumps(error)))
        == "https://***@host/a?***: read: HTTP status 403"
    )
    assert isinstance(error, BertmillError)
