"""Tests skeletons of pages that a program wrote, and the cap on pages of one skeleton."""

import hashlib
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import BuildConfig, Dedup, Extraction, Source
from pipeline.dedup.bot_stubs import skeleton, skeletons
from pipeline.stages.dedup import run_dedup
from pipeline.stages.extract import run_extract
from schemas.columns.documents import DOCUMENTS
from tests.pipeline.removal_files import all_removals
from tests.pipeline.sources.dumps import FOOT, HEAD, page
from tests.support.ray_cluster import RayCluster

STUB = "{name} mao ang usa ka espesye sa {genus}. Una ning gihulagway ni {author} niadtong {year}. Wala pa."
WORDS = "river stone water bridge garden winter letter music silver window".split()


def test_a_skeleton_is_what_does_not_vary() -> None:
    one = STUB.format(name="Abacetus abacillus", genus="Abacetus", author="Kolbe", year=1898)
    two = STUB.format(name="Zyras minor", genus="Zyras", author="Casey ug Motschulsky", year=1900)
    three = STUB.format(name="Zyras minor", genus="Zyras", author="Casey", year=2001)
    assert skeleton("Abacetus abacillus", [one]) == skeleton("Zyras minor", [three])
    assert skeleton("Zyras minor", [two]) != skeleton("Zyras minor", [three])
    assert skeleton("X", ["A pier by the water."]) != skeleton("X", ["A pier by the river."])


def test_long_pages_have_no_skeleton() -> None:
    rows = [["The same short page."], ["The same long page."] * 200, ["The same", "short page."]]
    values: dict[str, list[Any]] = {
        "title": ["T"] * 3,
        "sentences": rows,
        "paragraph_sentences": [[len(sentences)] for sentences in rows],
    }
    found = skeletons(pa.table(values, schema=pa.schema([DOCUMENTS.field(name) for name in values])))
    assert found[1] == 0
    assert found[0] == found[2] != 0


def pages() -> list[tuple[int, str]]:
    """1,000 pages that a program wrote, and 50 ordinary ones, as in a dump."""
    made = []
    for n in range(1, 1001):
        text = STUB.format(name=f"Zyras n{n}", genus="Zyras", author="Casey", year=n)
        made.append((n, page(n, f"{text} {text}", title=f"Zyras n{n}")))
    chance = random.Random(4)
    return made + [(n, page(n, " ".join(chance.choices(WORDS, k=60)) + ".")) for n in range(2000, 2050)]


def source(folder: Path, files: int) -> Source:
    """The pages in several dumps, in a different order each time."""
    found = pages()
    random.Random(files).shuffle(found)
    for number in range(files):
        body = "".join(text for _, text in found[number::files])
        (folder / f"{files}-{number}.xml").write_text(HEAD.replace("enwiki", "cebwiki") + body + FOOT)
    return Source(name="wiki", kind="wikimedia", lang="ceb", paths=[str(folder / f"{files}-*.xml")])


@pytest.mark.ray
def test_a_cap_leaves_the_same_stubs_however_files_are_cut(ray_session: RayCluster, tmp_path: Path) -> None:
    """Case pipeline-007."""
    dropped = []
    for files in (1, 3):
        config = BuildConfig(
            output=str(tmp_path / f"out{files}"),
            sources=[source(tmp_path, files)],
            extraction=Extraction(unit_bytes=1 << 16),
            dedup=Dedup(max_templated=20),
        )
        work = str(tmp_path / f"work{files}")
        extracted = run_extract(config, work)
        assert len(extracted.parts) >= files
        found = run_dedup(config, work, extracted)
        assert found.counts == {"ceb": {"bot-stub": 980}}
        dropped.append(sorted(all_removals(found.removals)["key"].to_pylist()))
    assert dropped[0] == dropped[1]
    # The pages with the smallest keys stay.
    stubs = sorted(f"wiki/ceb/{n}/{10 * n}" for n in range(1, 1001))
    assert dropped[0] == stubs[20:]


def skeleton_word_by_word(title: str, paragraphs: list[str]) -> bytes:
    """The rule as stated, without a cache of words."""
    names = {word.strip("().,;:!?").casefold() for word in title.split()}
    kept: list[str] = []
    for paragraph in paragraphs:
        for token in paragraph.split():
            word = token.strip("().,;:!?\"'«»„“”")
            if not (word[:1].isupper() or word.casefold() in names or any(map(str.isdigit, word))):
                kept.append(word)
            elif not kept or kept[-1] != "\0":
                kept.append("\0")
        kept.append("\n")
    return hashlib.blake2b(" ".join(kept).encode(), digest_size=8).digest()


TOKENS = st.text(st.one_of(st.sampled_from("aBß«(1½²一Ⅷǅ'.\0"), st.characters(codec="utf-8")), max_size=4)
TEXTS = st.lists(TOKENS, max_size=8).map(" ".join)


@settings(max_examples=100, deadline=None)
@given(TEXTS, st.lists(TEXTS, max_size=3))
def test_a_skeleton_is_that_of_its_words_one_by_one(title: str, paragraphs: list[str]) -> None:
    assert skeleton(title, paragraphs) == skeleton_word_by_word(title, paragraphs)
