"""The settings of each model that the recipe makes, and those of a call of the script."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster import storage

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Recipe:
    """One model. Configs are configs/NAME-model-corpus.yaml and configs/recipes/NAME-model.yaml."""

    name: str
    texts: tuple[tuple[str, float | None], ...]
    """Globs below DATA/pretrain, and the megabytes of each language that are taken of them."""
    evaluation: tuple[str, ...]
    """Globs of evaluation sets below DATA/eval whose text must not be in the corpus."""
    columns: tuple[str, ...]
    """Globs of evaluation sets in column files."""
    suite: str
    rates: tuple[float, ...]
    """Learning rates that the search compares."""
    shares: tuple[float, ...]
    """Share of the time of each phase."""
    gpu_hours: float
    toy_subwords: int
    """Vocabulary size of a rehearsal: room for the alphabets."""
    nli: bool
    """Whether RTE, MRPC and STS-B start from a model fine-tuned on NLI."""


RECIPES: Mapping[str, Recipe] = {
    "english": Recipe(
        name="english",
        texts=(("english*.jsonl.zst", None),),
        evaluation=("cola/*", "sst2_glue/*", "mrpc/*", "stsb/*", "rte/*", "qnli/*"),
        columns=(),
        suite="glue",
        rates=(5e-4, 8e-4, 1.2e-3),
        shares=(1.0,),
        gpu_hours=1.5,
        toy_subwords=1000,
        nli=True,
    ),
    "multilingual": Recipe(
        name="multilingual",
        # Fine-tuning uses English tasks, and the multilingual files contain little English.
        texts=(("multilingual*.jsonl.zst", None), ("english*.jsonl.zst", 40.0)),
        evaluation=("xquad/*", "tydiqa/*", "tydiqa/*/*", "sib200/*/*", "tatoeba/*"),
        columns=("panx/*", "ud/*", "ud_pud/*"),
        suite="multilingual",
        rates=(4e-4, 6e-4, 1e-3),
        shares=(0.85, 0.15),
        gpu_hours=8.0,
        toy_subwords=5000,
        nli=False,
    ),
}


@dataclass(frozen=True)
class Call:
    """One call of the script."""

    recipe: Recipe
    data: Path
    """Folder with pretrain/ and eval/."""
    output: str
    """Folder or URI of corpus, runs, model and results."""
    work: Path
    """Local folder for text and fine-tuning."""
    cards: int
    """Processes that train together, each on a GPU unless ``cpu`` is set."""
    cpu: bool
    minutes: float
    """Wall-clock time of the pretraining."""
    search_seconds: float
    """Wall-clock time of each run of the search, or 0 for the middle learning rate without a search."""
    launcher: str
    """ray, torchrun or local."""
    toy: bool
    """Tiny sizes, to rehearse every stage."""
    overrides: tuple[str, ...] = ()
    """--field=value for every pretraining."""

    def at(self, *names: str) -> str:
        """A place below the output."""
        uri = self.output
        for name in names:
            uri = storage.join(uri, name)
        return uri

    @property
    def gpu_arguments(self) -> list[str]:
        """Of commands with the flag --gpu."""
        return [] if self.cpu else ["--gpu"]


# One layer of 32 on a few hundred kilobytes: every stage in seconds on a CPU.
TOY_MEGABYTES = 0.1
TOY_CORPUS = ("--instances.bucket_bytes=65536", "--instances.passes=1",
              "--extraction.unit_bytes=65536", "--dedup.near=false")  # fmt: skip
TOY_MODEL = ("--model.size=custom", "--model.layers=1", "--model.hidden_size=32", "--model.heads=2",
             "--precision=fp32", "--compile=false", "--evaluation.rows=40", "--logging.every_steps=1",
             "--data.check_shards=false")  # fmt: skip
TOY_BATCH, TOY_TOKENS, TOY_STEPS = 8, 1024, 6
TOY_TASKS = {"glue": ("cola", "rte"), "multilingual": ("sib200",)}
