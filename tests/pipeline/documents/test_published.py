"""Tests the dataset of kept documents: the plan of its files, and its texts."""

from itertools import groupby
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from pipeline.documents.published import PartCount, document_text, plan_shards
from pipeline.text.normalize import normalize_paragraphs
from pipeline.text.sentences.split import spaces_before, split_paragraphs

COUNTS = st.lists(
    st.builds(
        PartCount,
        lang=st.sampled_from(["en", "fo"]),
        side=st.sampled_from(["train", "validation"]),
        part=st.integers(0, 30),
        documents=st.integers(0, 3),
        text_bytes=st.integers(1, 100),
    ),
    unique_by=lambda count: (count.lang, count.side, count.part),
)


@given(COUNTS, st.integers(1, 200), st.randoms())
def test_every_part_with_documents_is_in_one_file_in_order(
    counts: list[PartCount], shard_bytes: int, chance: Random
) -> None:
    shards = plan_shards(counts, shard_bytes)
    places = [(shard.lang, shard.side, part) for shard in shards for part in shard.parts]
    assert places == sorted((count.lang, count.side, count.part) for count in counts if count.documents)
    assert sum(shard.text_bytes for shard in shards) == sum(c.text_bytes for c in counts if c.documents)
    for _, group in groupby(shards, lambda shard: (shard.lang, shard.side)):
        files = list(group)
        assert [(shard.number, shard.of) for shard in files] == [(n, len(files)) for n in range(len(files))]
        assert all(shard.text_bytes >= shard_bytes for shard in files[:-1])
        assert all(shard.text_bytes < shard_bytes + 100 for shard in files)
    assert plan_shards(chance.sample(counts, len(counts)), shard_bytes) == shards


PIECES = st.characters() | st.sampled_from([*"。！ .?»", "It rained. ", "你好。", "สวัสดี ครับ ", "ab " * 900])


@given(
    st.lists(st.lists(PIECES, max_size=40).map("".join), max_size=4),
    st.sampled_from(["en", "zh", "th", "de", "xx-unknown"]),
)
def test_a_text_has_its_paragraphs_as_they_were_cleaned(texts: list[str], lang: str) -> None:
    paragraphs = normalize_paragraphs(texts, lang)
    split = split_paragraphs(paragraphs, lang)
    spaced = [space for pair in zip(paragraphs, split, strict=True) for space in spaces_before(*pair)]
    sentences = [sentence for paragraph in split for sentence in paragraph]
    assert document_text(sentences, list(map(len, split)), spaced) == "\n\n".join(paragraphs)
