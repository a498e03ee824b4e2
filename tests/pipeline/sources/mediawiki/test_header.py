"""Tests the URLs of pages, derived from the URL of the main page in a dump's head."""

import pytest

from pipeline.sources.mediawiki.header import page_url, parse_header


@pytest.mark.parametrize(
    ("base", "title", "url"),
    [
        ("https://fo.wikipedia.org/wiki/Fors%C3%AD%C3%B0a", "Á (rúnir)", "https://fo.wikipedia.org/wiki/%C3%81_(r%C3%BAnir)"),
        ("https://x.wikipedia.org/wiki/Portal/Main", "C++/CLI?", "https://x.wikipedia.org/wiki/C%2B%2B/CLI%3F"),
        ("http://localhost/index.php?title=Main&amp;x=1", "A B", "http://localhost/index.php?title=A_B"),
        ("http://localhost/w/index.php/Main_Page", "A", "http://localhost/w/index.php/A"),
        ("", "A", None),
        ("not an address", "A", None),
    ],
)  # fmt: skip
def test_page_addresses(base: str, title: str, url: str | None) -> None:
    head = f"<mediawiki><siteinfo><dbname>fowiki</dbname><base>{base}</base></siteinfo>"
    assert page_url(parse_header(head.encode(), "a.xml", None).page_prefix, title) == url


def test_a_dump_that_is_renamed_has_no_addresses_of_the_other_wiki() -> None:
    head = (
        b"<mediawiki><siteinfo><dbname>enwiki</dbname><base>https://en.wikipedia.org/wiki/X</base></siteinfo>"
    )
    assert parse_header(head, "fowiki-20260901-pages-articles.xml", None).page_prefix == ""
