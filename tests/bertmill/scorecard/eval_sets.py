"""Small sets with invented sentences in the layouts of the published ones."""

import json
import lzma
from collections.abc import Sequence
from pathlib import Path

from tests.trainer.finetuning.test_run import words

Rows = Sequence[Sequence[str]]


def _write(path: Path, text: str) -> None:
    """Writes a file, compressed according to its suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(text.encode()) if path.suffix == ".xz" else text.encode())


def _table(path: Path, header: str, rows: Rows) -> None:
    lines = [header.replace(" | ", "\t")] if header else []
    _write(path, "\n".join([*lines, *("\t".join(row) for row in rows)]) + "\n")


def _sentences(seed: int, count: int = 24) -> list[tuple[str, str, bool]]:
    """Two sentences, and whether a cat is in them."""
    return [(" ".join(row[:3]), " ".join(row[3:]), "cat" in row) for row in words(count, seed)]


def glue_folder(folder: Path) -> Path:
    """CoLA, STS-B, MRPC and RTE as in their releases. SST-2 is missing and QNLI has no train.tsv."""
    for seed, (name, part) in enumerate((("train", "in_domain_train"), ("dev", "in_domain_dev")), start=1):
        rows = _sentences(seed)
        _table(
            folder / "cola" / f"{part}.tsv.xz", "", [("x", str(int(cat)), "", one) for one, _, cat in rows]
        )
        _table(
            folder / "stsb" / f"sts-{name}.csv.xz", "",
            [("a", "b", "c", str(n), f"{2 + cat}.5", one, two, *(["licence"] if n % 3 else []))
             for n, (one, two, cat) in enumerate(rows)],
        )  # fmt: skip
        _table(
            folder / "mrpc" / f"msr_paraphrase_{'test' if name == 'dev' else name}.txt",
            "\ufeffQuality | #1 ID | #2 ID | #1 String | #2 String",
            [(str(int(cat)), "1", "2", f'"{one}', two) for one, two, cat in rows],
        )
        _table(
            folder / "RTE" / f"{name}.tsv", "index | sentence1 | sentence2 | label",
            [("0", one, two, "entailment" if cat else "not_entailment") for one, two, cat in rows],
        )  # fmt: skip
    _table(
        folder / "cola" / "out_of_domain_dev.tsv.xz", "", [("x", "1", "", "cat dog"), ("x", "0", "*", "w3")]
    )
    _table(
        folder / "qnli" / "dev.tsv", "index | question | sentence | label", [("0", "a", "b", "entailment")]
    )
    return folder


def multilingual_folder(folder: Path) -> Path:
    """PAN-X, UD POS, TyDiQA-GoldP, XQuAD, SIB-200 and Tatoeba in two or three languages."""
    tags = {"cat": "B-PER", "dog": "B-LOC"}
    upos = {"cat": "NOUN", "dog": "NOUN", "sat": "VERB", "ran": "VERB"}
    for seed, name in enumerate(("train-en", "dev-en", "test-en", "test-de"), start=1):
        sentences = ("\n".join(f"{w}\t{tags.get(w, 'O')}" for w in row) for row in words(24, seed))
        _write(folder / "panx" / f"{name}.tsv.xz", "\n\n".join(sentences) + "\n")
    # XTREME publishes test sets in this form.
    _write(folder / "panx" / "test-fr.tsv.xz", "\n".join(words(1, 9)[0]) + "\n")
    for seed, name in enumerate(("ud/en_ewt-ud-dev", "ud/en_ewt-ud-test", "ud_pud/de_pud-ud-test"), start=1):
        lines = (
            "\n".join(f"{n}\t{w}\t_\t{upos.get(w, 'X')}" for n, w in enumerate(row, start=1))
            for row in words(24, seed)
        )
        _write(folder / f"{name}.conllu", "# newdoc id = a\n" + "\n\n".join(lines) + "\n")
    spans = {
        "tydiqa/tydiqa-goldp-v1.1-train": "tydiqa.goldp.en.train",
        "tydiqa/tydiqa-goldp-v1.1-dev": "tydiqa.goldp.en.dev",
        "tydiqa/tydiqa-goldp-v1.1-dev/": "tydiqa.goldp.fi.dev",
        "xquad": "xquad.de",
    }
    for seed, (place, name) in enumerate(spans.items(), start=1):
        _write(folder / place / f"{name}.json.xz", json.dumps({"data": [{"paragraphs": _paragraphs(seed)}]}))
    for seed, (language, part) in enumerate(
        (("eng_Latn", "train"), ("eng_Latn", "dev"), ("eng_Latn", "test"), ("deu_Latn", "test")), start=1
    ):
        rows = [("1", "pets" if cat else "things", one) for one, _, cat in _sentences(seed)]
        _table(folder / "sib200" / language / f"{part}.tsv", "index_id | category | text", rows)
    for language in ("deu", "fra"):
        sides = "\n".join(" ".join(row) for row in words(12, 5)) + "\n"
        _write(folder / "tatoeba" / f"tatoeba.{language}-eng.{language}", sides)
        _write(folder / "tatoeba" / f"tatoeba.{language}-eng.eng", sides)
    return folder


def _paragraphs(seed: int) -> list[dict[str, object]]:
    paragraphs: list[dict[str, object]] = []
    for number, row in enumerate(words(12, seed, length=8)):
        context = " ".join(["mat", *row, "cat"])
        answer = {"text": "cat", "answer_start": context.index("cat")}
        paragraphs.append(
            {"context": context, "qas": [{"id": str(number), "question": "w5 w6", "answers": [answer]}]}
        )
    return paragraphs
