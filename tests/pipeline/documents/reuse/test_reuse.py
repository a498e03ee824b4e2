"""Tests that pages of an earlier build are reused if their dependencies are equal, with the same bytes."""

import io
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import CorpusError
from tests.pipeline.documents.reuse.wikis import (
    PROSE,
    Extracted,
    articles,
    extract,
    templates,
    write_wiki,
)
from tests.pipeline.sources.dumps import HEAD, page

ARTICLES = {
    1: PROSE + "No template.",
    2: PROSE + "It is {{dist|5}} long.",
    3: PROSE + "It is {{outer|5}} wide.",
    4: PROSE + "It is {{di{{tail}}|5}} high.",
    5: PROSE + "It is {{absent|5}} deep.",
    6: PROSE + "It is {{d|5}} thick.",
    7: "Too short.",
    8: PROSE + "It is {{cite|x}} old.",
}
TEMPLATES = {
    "Dist": "{{{1}}} miles",
    "Outer": "about {{dist|{{{1}}}}}",
    "Tail": "st",
    "D": "#REDIRECT [[Template:Dist]]",
    "Cite": "cited {{{1}}}",
}


def both(tmp_path: Path, first: str, second: str, head: str = HEAD) -> tuple[Extracted, Extracted]:
    """Extracts the second version with the first as the earlier build, and checks for equal bytes."""
    earlier = extract(write_wiki(tmp_path / "1", first), tmp_path / "work1")
    path = write_wiki(tmp_path / "2", second, head, ".bz2")
    reusing = extract(path, tmp_path / "reusing", earlier.pages)
    assert list((tmp_path / "reusing").glob("page-copies-*/*.done.json"))
    assert reusing.outcome() == extract(path, tmp_path / "plain").outcome()
    return earlier, reusing


@pytest.mark.parametrize(
    ("changed", "cleaned"),
    [
        ({}, set()),
        ({"Dist": "{{{1}}} km"}, {2, 3, 4, 6}),
        ({"Outer": "nearly {{dist|{{{1}}}}}"}, {3}),
        ({"Tail": "xx"}, {4}),
        ({"Absent": "no {{{1}}} any more"}, {5}),
        ({"D": "{{{1}}} yards"}, {6}),
        ({"Cite": "cited {{{1}}}&lt;noinclude&gt;how to use it&lt;/noinclude&gt;"}, set()),
        ({"Unused": "new"}, set()),
    ],
    ids=["nothing", "body", "nested", "computed-name", "new", "redirect", "documentation", "unused"],
)
def test_a_changed_template_is_cleaned_where_it_is_used(
    tmp_path: Path, changed: dict[str, str], cleaned: set[int]
) -> None:
    first = articles(ARTICLES) + templates(TEMPLATES)
    second = articles(ARTICLES) + templates(TEMPLATES | changed)
    _, reusing = both(tmp_path, first, second)
    assert reusing.reused.pages == len(ARTICLES)
    assert len(ARTICLES) - reusing.reused.reused == len(cleaned)


def test_a_removed_template_is_cleaned_where_it_was_used(tmp_path: Path) -> None:
    left = {name: body for name, body in TEMPLATES.items() if name != "Cite"}
    _, reusing = both(
        tmp_path, articles(ARTICLES) + templates(TEMPLATES), articles(ARTICLES) + templates(left)
    )
    assert reusing.reused.reused == len(ARTICLES) - 1


def test_text_and_title_count_and_the_revision_does_not(tmp_path: Path) -> None:
    second = {**ARTICLES, 1: PROSE + "Another end.", 9: PROSE + "A new page."}
    renamed = articles(second).replace("<title>Page 2<", "<title>Pier 2<").replace("<id>30<", "<id>31<")
    _, reusing = both(tmp_path, articles(ARTICLES), renamed)
    assert (reusing.reused.pages, reusing.reused.reused) == (9, 6)


def test_another_namespace_name_is_another_wiki(tmp_path: Path) -> None:
    head = HEAD.replace(">Talk<", ">Spjall<")
    _, reusing = both(tmp_path, articles(ARTICLES), articles(ARTICLES), head)
    assert reusing.reused.reused == 0


def test_a_heading_that_is_learned_counts_where_it_stands(tmp_path: Path) -> None:
    """Five articles end with a list under a heading that occurs only four times in the first snapshot."""
    listed = PROSE + "\n\n== Wellspring ==\n* [[A]]\n* [[B]]\n"
    first = dict.fromkeys(range(1, 5), listed) | {9: PROSE}
    _, reusing = both(tmp_path, articles(first), articles(first | {5: listed}))
    assert (reusing.reused.pages, reusing.reused.reused) == (6, 1)


def test_an_index_of_many_parts_and_row_groups_serves_other_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second snapshot has different unit boundaries, and pages in a different order."""
    monkeypatch.setattr("pipeline.documents.reuse.page_index.ROWS_AT_ONCE", 16)
    monkeypatch.setattr("pipeline.documents.reuse.previous_pages._PAGES_PER_READ", 8)
    monkeypatch.setattr("pipeline.documents.rows.BATCH_ROWS", 50)
    texts = {number: PROSE + f"Page {number} ends here." for number in range(1, 1001)}
    earlier = extract(write_wiki(tmp_path / "1", articles(texts)), tmp_path / "work1")
    assert len(earlier.folder.finished()) > 4
    path = write_wiki(tmp_path / "2", articles({0: PROSE * 30, **texts}))
    reusing = extract(path, tmp_path / "reusing", earlier.pages)
    assert reusing.outcome() == extract(path, tmp_path / "plain").outcome()
    assert (reusing.reused.pages, reusing.reused.reused) == (1001, 1000)

    shuffled = dict(random.Random(7).sample(list(texts.items()), len(texts)))
    path = write_wiki(tmp_path / "3", articles(shuffled))
    reusing = extract(path, tmp_path / "shuffled", earlier.pages)
    assert reusing.outcome() == extract(path, tmp_path / "plain-shuffled").outcome()
    assert 0 < reusing.reused.reused <= 1000


def test_what_was_reused_can_be_reused_again(tmp_path: Path) -> None:
    """The index of a build with an earlier one equals that of a build without one (`both`)."""
    pages = articles(ARTICLES) + templates(TEMPLATES)
    _, second = both(tmp_path, pages, pages)
    third = extract(write_wiki(tmp_path / "3", pages), tmp_path / "work3", second.pages)
    assert third.reused.reused == len(ARTICLES)


def test_a_timeout_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(wikitext: str) -> float:
        while "forever" in wikitext:
            pass
        return 0.0

    path = write_wiki(tmp_path / "1", articles({1: PROSE, 2: PROSE + "forever"}))
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.documents.cleaning.list_share", slow)
        earlier = extract(path, tmp_path / "work1", page_seconds=0.05)
    reusing = extract(path, tmp_path / "work2", earlier.pages, page_seconds=0.05)
    assert (reusing.reused.pages, reusing.reused.reused) == (2, 1)
    (marker,) = reusing.folder.finished().values()
    assert marker.counts.funnel.kept == 2


NAMES = ("A", "B", "C", "D")
CALLS = st.sampled_from([f"{{{{{name}|x}}}}" for name in NAMES])
BODIES = st.dictionaries(
    st.sampled_from(NAMES),
    st.one_of(
        st.lists(st.one_of(CALLS, st.sampled_from(["word ", "{{{1}}} ", "\n* item\n"])), max_size=3).map(
            "".join
        ),
        st.sampled_from([f"#REDIRECT [[Template:{name}]]" for name in NAMES]),
    ),
)
TEXTS = st.lists(
    st.lists(CALLS, max_size=2).map(lambda calls: PROSE + " and ".join(calls) + " it ends."),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60)
@given(TEXTS, BODIES, TEXTS, BODIES)
def test_any_two_snapshots_give_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory,
    before: list[str],
    bodies_before: dict[str, str],
    after: list[str],
    bodies_after: dict[str, str],
) -> None:
    first = articles(dict(enumerate(before, 1))) + templates(bodies_before)
    second = articles(dict(enumerate(after, 1))) + templates(bodies_after)
    both(tmp_path_factory.mktemp("snapshots"), first, second)


def damaged(earlier: Extracted, damage: str) -> Path:
    """Damages a file of ``earlier`` and returns it."""
    what, how = damage.split("-")
    (index,) = earlier.files(".pages")
    file = index if what == "index" else index.with_suffix(".parquet")
    raw = bytearray(file.read_bytes())
    # A file must not change while a process has it open.
    file.unlink()
    if how == "truncated":
        file.write_bytes(raw[: len(raw) // 2])
    elif how == "flipped":
        file.write_bytes(raw[:64] + bytes(byte ^ 0x55 for byte in raw[64:400]) + raw[400:])
    elif how == "replaced":
        table = pq.read_table(io.BytesIO(raw))
        sentences = [["Another text."] for _ in range(table.num_rows)]
        column = pa.array(sentences, pa.list_(pa.string()))
        pq.write_table(table.set_column(table.schema.get_field_index("sentences"), "sentences", column), file)
    return file


@pytest.mark.parametrize(
    "damage",
    ["index-missing", "index-truncated", "index-flipped", "text-missing", "text-truncated", "text-replaced"],
)
def test_a_damaged_earlier_build_is_one_line(tmp_path: Path, damage: str) -> None:
    path = write_wiki(tmp_path / "1", articles(ARTICLES))
    earlier = extract(path, tmp_path / "work1")
    file = damaged(earlier, damage)
    with pytest.raises(CorpusError, match=rf"^previous: .*{file.name}: .*remove `previous`") as error:
        extract(path, tmp_path / "work2", earlier.pages)
    assert "\n" not in str(error.value)


def test_pages_with_other_text_under_the_same_id_are_new(tmp_path: Path) -> None:
    _, reusing = both(tmp_path, page(1, PROSE), page(1, PROSE + "And more."))
    assert reusing.reused.reused == 0
