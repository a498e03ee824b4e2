import os
import random
import resource
import subprocess
import sys
import zlib
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.wordpiece.alphabet import VocabularyError, choose_alphabet
from pipeline.wordpiece.training import train, train_wordpiece
from pipeline.wordpiece.word_counts import counts_table
from schemas.vocabulary import SPECIAL_TOKENS
from tests.pipeline.bert_reference import ROOT, sample_sentences
from tests.pipeline.wordpiece.merges_by_hand import merged_by_hand

OPENING = 5


@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=9), st.integers(1, 99), min_size=1, max_size=12),
    st.integers(1, 30),
    st.sampled_from([1, 1 << 40]),
)
def test_merges_are_those_of_recounting_every_pair(counts: Any, merges: int, scale: int) -> None:
    counts = {word: count * scale for word, count in counts.items()}
    alphabet = choose_alphabet(counts_table(counts), 1000, 1000).pieces
    expected = merged_by_hand(counts, alphabet, len(alphabet) + merges)
    size = OPENING + len(expected)
    assert train(counts, size, 0, surplus=1.0).pieces[OPENING:] == expected


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(st.text("abcdef", min_size=2, max_size=9), st.integers(1, 99), min_size=9), st.randoms()
)
def test_the_order_of_the_counts_does_not_matter(counts: Any, chance: random.Random) -> None:
    items = list(counts.items())
    chance.shuffle(items)
    size = OPENING + 2 + len({*"abcdef"}) * 2 + 3
    try:
        expected = train_wordpiece(counts, size, 2)
    except VocabularyError as error:
        with pytest.raises(VocabularyError, match=str(error)[:30]):
            train_wordpiece(dict(items), size, 2)
    else:
        assert train_wordpiece(dict(items), size, 2) == expected


TRAIN = """
import sys
from pipeline.wordpiece.vocabulary import vocabulary_bytes
from pipeline.wordpiece.word_counts import count_words
from pipeline.wordpiece.training import train_wordpiece
from tests.pipeline.bert_reference import sample_sentences
counts = count_words(sample_sentences()[::40], True)
sys.stdout.buffer.write(vocabulary_bytes(train_wordpiece(counts, 4000)))
"""


def test_two_processes_write_the_same_bytes() -> None:
    """Cases pipeline-010 and pipeline-014."""
    answers = []
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        ran = subprocess.run(
            [sys.executable, "-c", TRAIN], env=environment, capture_output=True, check=True, cwd=ROOT
        )
        answers.append(ran.stdout)
    assert answers[0] == answers[1]
    lines = answers[0].decode().split("\n")
    assert lines[:5] == list(SPECIAL_TOKENS)
    assert lines[5:104] == [f"[unused{number}]" for number in range(1, 100)]
    assert len(lines) == 4001
    assert len(set(lines)) == 4001


def test_a_word_counted_three_thousand_million_times_is_a_piece() -> None:
    """Case pipeline-011."""
    counts = {"the": 3_000_000_000, "then": 1 << 40, "than": 1 << 38, "thou": 1 << 38}
    pieces = train_wordpiece(counts, OPENING + 17, 0)
    assert {"the", "then"} <= set(pieces)


def test_counts_that_add_up_to_more_than_can_be_held_are_refused() -> None:
    with pytest.raises(VocabularyError, match=r"over 2\^62"):
        train_wordpiece({"a": 1 << 61, "b": 1 << 61}, 100, 0)


def test_counts_below_zero_are_refused() -> None:
    """Such counts result from an overflow of 64-bit sums."""
    with pytest.raises(VocabularyError, match="are negative"):
        train_wordpiece({"ab": 5, "ac": -1}, 100, 0)


def ideographs(number: int) -> dict[str, int]:
    chance = random.Random(5)
    codes = chance.sample(range(0x4E00, 0x9FFF), number)
    return {chr(code): 1 + 100_000 // (rank + 1) for rank, code in enumerate(codes)}


def test_too_many_ideographs_leave_out_the_rarest_by_rule() -> None:
    """Case pipeline-013."""
    counts = {**ideographs(4000), "かな": 50, "言って": 900, "river": 70, "rivers": 60, "ring": 50}
    counts |= {"ほん" * length: 40 + length for length in range(1, 30)}
    counts |= {f"{a}{b}{c}": 9 for a in "rivesng" for b in "rivesng" for c in "rivesng"}
    training = train(counts, 1000, 99)
    assert len(training.pieces) == len(set(training.pieces)) == 1000
    common, rare = sorted(ideographs(4000), key=lambda char: -counts[char])[::3999]
    assert common in training.pieces
    assert rare not in training.pieces
    assert {"r", "##r", "か", "##な"} <= set(training.pieces)
    assert 0 < training.left_out_share < 0.5
    assert training.characters_left_out > 3000


def test_alphabets_that_do_not_fit_are_an_error() -> None:
    counts = {"".join(chr(code) for code in range(0x400, 0x460)): 5}
    with pytest.raises(
        VocabularyError, match=r"vocabulary.size 120: the alphabets .* need 191 subwords, but only 16"
    ):
        train_wordpiece(counts, 120, 99)


def test_too_little_text_is_an_error_that_says_how_much_there_is() -> None:
    with pytest.raises(VocabularyError, match=r"vocabulary.size 500: these 2 words give at most \d+"):
        train_wordpiece({"river": 3, "rivers": 2}, 500, 0)


def test_no_script_loses_letters_to_a_larger_one() -> None:
    words = Counter(word for line in sample_sentences()[::10] for word in line.split() if word.isalpha())
    rare = {"ትምህርት": 1, "ᏣᎳᎩ": 1, "ދިވެހި": 1}
    pieces = set(train_wordpiece({**words, **rare}, 12_000))
    for word in rare:
        assert word[0] in pieces
        assert {"##" + char for char in word[1:]} <= pieces


def test_rarest_words_are_pruned_and_counted() -> None:
    counts = {f"{a}{b}{c}": 1 + ord(a) % 7 for a in "abcdefghij" for b in "abcdefghij" for c in "abcdefghij"}
    training = train(counts, 200, 10, max_words=600)
    assert (training.words, training.words_pruned) == (600, 400)
    assert training.pruned_share == pytest.approx(
        sum(sorted(counts.values())[:400]) / sum(counts.values()), abs=1e-12
    )
    assert train(counts, 200, 10, max_letters=600).words == 200


def test_words_of_one_count_and_one_hash_go_by_the_alphabet() -> None:
    """For two words with the same CRC-32 and count, alphabetical order decides which one a limit omits."""
    assert zlib.crc32(b"plumless") == zlib.crc32(b"buckeroo")
    made = [
        train(dict.fromkeys(words, 5), OPENING + 23, 0, max_words=1).pieces
        for words in (["plumless", "buckeroo"], ["buckeroo", "plumless"])
    ]
    assert made[0] == made[1]
    assert any(piece.startswith("bu") for piece in made[0])
    assert not any(piece.startswith("pl") for piece in made[0])


# Arrow's own pool reserves a gigabyte of addresses, which would count toward a limit.
MEASURED = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}


def run_measured(script: str) -> subprocess.CompletedProcess[str]:
    """Runs a script that limits its own memory."""
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **MEASURED},
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )


MANY_WORDS = """
import resource
from benchmarks.peak_memory import peak_resident_bytes
from pipeline.wordpiece.training import train_wordpiece
limit = 2_000_000_000
# The factor is odd, so all words differ.
counts = {f"{number * 0x9E3779B1 % (1 << 30):x}": 2 + number % 5 for number in range(5_000_000)}
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
print(len(train_wordpiece(counts, 30_522)), peak_resident_bytes())
"""


@pytest.mark.slow
def test_five_million_distinct_words_inside_two_gigabytes() -> None:
    """Case pipeline-012."""
    ran = run_measured(MANY_WORDS)
    assert ran.returncode == 0, ran.stderr[-2000:]
    size, peak = map(int, ran.stdout.split())
    assert size == 30_522
    assert peak < 2_000_000_000
    assert "rarest of 5000000 distinct words" in ran.stderr


TOO_MANY_LETTERS = """
import resource
from pipeline.wordpiece.alphabet import VocabularyError
from pipeline.wordpiece.training import train_wordpiece
counts = {f"{number:x}zz": 2 for number in range(400_000)}
limit = 240 << 20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    train_wordpiece(counts, 30_522)
except VocabularyError as error:
    print(error)
"""


def test_too_little_memory_is_one_clear_line() -> None:
    """Case pipeline-012: the vocabulary never depends on how much memory the machine has."""
    ran = run_measured(TOO_MANY_LETTERS)
    assert "vocabulary.max_letters 24000000: not enough memory" in ran.stdout, ran.stderr[-2000:]


def test_this_process_has_no_data_limit() -> None:
    """The limit of the test above must stay in its own process."""
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY
