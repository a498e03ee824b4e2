"""From raw multilingual Wikipedia dumps and BookCorpus to a trained BERT, from Python.

The names below are all of the public API. They are imported when they are first used, so that
``import bertmill`` takes no time and needs neither torch nor Ray.

>>> import bertmill
>>> corpus = bertmill.build("configs/demo.yaml")  # doctest: +SKIP
>>> dataset = bertmill.load_corpus(corpus.manifest, batch_size=32)  # doctest: +SKIP
>>> outcome = bertmill.pretrain("configs/demo-train.yaml")  # doctest: +SKIP
>>> model = bertmill.load_model(outcome.run_uri).model  # doctest: +SKIP
"""

import importlib
from typing import TYPE_CHECKING, Any

from bertmill.package_roots import foreign_package

if TYPE_CHECKING:
    from bertmill.dataset import CorpusDataset, PretrainingCollator, load_corpus
    from bertmill.fill_masks import fill_masks
    from bertmill.jobs import BuildResult, build, pretrain
    from schemas.errors import BertmillError
    from trainer.evaluation.saved_model import evaluate_model
    from trainer.export.load_model import SavedModel, load_model
    from trainer.run.export_run import export_run
    from trainer.run.loop import Outcome

__all__ = [
    "BertmillError",
    "BuildResult",
    "CorpusDataset",
    "Outcome",
    "PretrainingCollator",
    "SavedModel",
    "build",
    "evaluate_model",
    "export_run",
    "fill_masks",
    "load_corpus",
    "load_model",
    "pretrain",
]

_MODULES = {
    "BertmillError": "schemas.errors",
    "BuildResult": "bertmill.jobs",
    "CorpusDataset": "bertmill.dataset",
    "Outcome": "trainer.run.loop",
    "PretrainingCollator": "bertmill.dataset",
    "SavedModel": "trainer.export.load_model",
    "build": "bertmill.jobs",
    "evaluate_model": "trainer.evaluation.saved_model",
    "export_run": "trainer.run.export_run",
    "fill_masks": "bertmill.fill_masks",
    "load_corpus": "bertmill.dataset",
    "load_model": "trainer.export.load_model",
    "pretrain": "bertmill.jobs",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'bertmill' has no attribute {name!r}")
    problem = foreign_package()
    if problem is not None:
        raise ImportError(problem)
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
