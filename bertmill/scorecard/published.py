"""Published figures of other models, in percent, with their sources."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """A model's row. It lacks the tasks that the source does not publish."""

    model: str
    figures: dict[str, float]
    source: str
    note: str


PUBLISHED: dict[str, tuple[Published, ...]] = {
    "glue": (
        Published(
            "BERT-base (cased)",
            {"cola": 56.53, "sst2": 92.32, "mrpc": 88.85, "stsb": 88.48, "qnli": 90.66, "rte": 65.70},
            "https://github.com/huggingface/transformers, examples/pytorch/text-classification/README.md",
            "dev sets, one seed, lr 2e-5, 3 epochs (MRPC 5)",
        ),
        Published(
            "BERT-base (uncased)",
            {"cola": 52.1, "sst2": 93.5, "mrpc": 88.9, "stsb": 85.8, "qnli": 90.5, "rte": 66.4},
            "Devlin et al. 2019, arXiv:1810.04805, table 1",
            "hidden test sets",
        ),
        Published(
            "MosaicBERT-base",
            {"cola": 55.1, "sst2": 92.5, "mrpc": 90.0, "stsb": 89.3, "qnli": 90.7, "rte": 81.4},
            "Portes et al. 2023, arXiv:2312.17482",
            "dev sets, 70,000 steps of pretraining, metrics as in that paper; RTE, MRPC and STS-B start from"
            " MNLI",
        ),
    ),
    "multilingual": (
        Published(
            "mBERT (cased)",
            {"panx": 62.2, "udpos": 70.3, "xquad": 64.5, "tydiqa": 59.7, "tatoeba": 38.7},
            "Hu et al. 2020 (XTREME), arXiv:2003.11080",
            "means over the languages of XTREME; XQuAD trained on SQuAD; F1 of spans",
        ),
        Published(
            "XLM-R (large)",
            {"panx": 65.4, "udpos": 72.6, "xquad": 76.6, "tydiqa": 65.1, "tatoeba": 57.3},
            "Hu et al. 2020 (XTREME), arXiv:2003.11080",
            "means over the languages of XTREME; XQuAD trained on SQuAD; F1 of spans",
        ),
    ),
}
