"""Provides small dumps for tests, and the bundled real ones."""

import bz2
from pathlib import Path

SAMPLE = Path(__file__).parents[3] / "sample"
CASES = Path(__file__).parents[2] / "cases" / "dumps"
LTG = SAMPLE / "dumps" / "ltgwiki-pages-articles-multistream.xml.bz2"
LTG_INDEX = SAMPLE / "dumps" / "ltgwiki-pages-articles-multistream-index.txt.bz2"

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="en">
  <siteinfo>
    <sitename>Example</sitename>
    <dbname>enwiki</dbname>
    <namespaces>
      <namespace key="0" case="first-letter" />
      <namespace key="1" case="first-letter">Talk</namespace>
    </namespaces>
  </siteinfo>
"""
FOOT = "</mediawiki>\n"


def page(
    number: int, text: str = "Some text.", *, title: str | None = None, ns: int = 0, extra: str = ""
) -> str:
    """One page as MediaWiki writes it. ``text`` must be escaped."""
    return f"""  <page>
    <title>{title or f"Page {number}"}</title>
    <ns>{ns}</ns>
    <id>{number}</id>
{extra}    <revision>
      <id>{number * 10}</id>
      <contributor>
        <username>A</username>
        <id>7</id>
      </contributor>
      <model>wikitext</model>
      <format>text/x-wiki</format>
      <text bytes="{len(text)}" xml:space="preserve">{text}</text>
      <sha1>0</sha1>
    </revision>
  </page>
"""


def streams(*parts: str) -> bytes:
    """A bz2 file with one stream for each part."""
    return b"".join(bz2.compress(part.encode()) for part in parts)
