"""The folder of a fine-tuning run: its identity, results of finished seeds, the state of an unfinished one.

OUTPUT/run.json states what the results depend on. OUTPUT/seeds/seed-N.json is a finished seed,
OUTPUT/seeds/seed-N.state one in training. OUTPUT/results.json summarizes the finished seeds and is written
after each of them.
"""

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from pydantic import JsonValue

from cluster import storage
from schemas.errors import CheckpointError, ConfigError
from trainer.finetuning.config import FinetuneConfig
from trainer.finetuning.records import Record, SeedResult, Spread, read_record, spreads
from trainer.finetuning.tasks.kinds import EncodedSet

RESULTS_NAME = "results.json"
_RUN_NAME = "run.json"
_SEEDS = "seeds"
# Fields that may change from one start to the next. Files and models are compared by digest, not by name.
_FREE = {
    "output", "seeds", "use_gpu", "log_every", "save_every", "model", "tokenizer", "files",
}  # fmt: skip


Identity = dict[str, JsonValue]
"""What the results depend on, by name: the fields of the config, model, labels, and files.SET."""


def identity_of(
    config: FinetuneConfig, model_digest: str, sets: Mapping[str, EncodedSet], labels: Sequence[str]
) -> Identity:
    """The identity of a run: its settings, and digests of the weights, the labels and every set."""
    return {
        **config.model_dump(mode="json", exclude=_FREE),
        "model": model_digest,
        "labels": hashlib.sha256(json.dumps(list(labels)).encode()).hexdigest(),
        **{f"files.{name}": _digest(data) for name, data in sets.items()},
    }


def _digest(data: EncodedSet) -> str:
    digest = hashlib.sha256()
    for encoded in data.inputs:
        digest.update(repr((encoded.ids, encoded.type_ids, encoded.targets, encoded.example)).encode())
    return digest.hexdigest()


class FinetuneReport(Record):
    """The content of results.json: the finished seeds, and a summary over them."""

    task: str
    metric: str
    """The metric that chooses the best epoch."""
    complete: bool
    """Whether all seeds of the config are finished."""
    examples: dict[str, int]
    """Examples by set."""
    config: FinetuneConfig
    summary: dict[str, dict[str, Spread]]
    """Metrics by set."""
    seeds: tuple[SeedResult, ...]

    @classmethod
    def of(
        cls, config: FinetuneConfig, metric: str, results: Sequence[SeedResult], examples: dict[str, int]
    ) -> Self:
        """The report on the finished seeds."""
        sets: dict[str, list[dict[str, float]]] = {}
        for result in results:
            sets.setdefault("validation", []).append(result.validation)
            for name, metrics in result.test.items():
                sets.setdefault(f"test/{name}" if name else "test", []).append(metrics)
        return cls(
            task=config.task,
            metric=metric,
            complete={result.seed for result in results} == set(config.seeds),
            examples=examples,
            config=config,
            summary={name: spreads(of_seeds) for name, of_seeds in sets.items()},
            seeds=tuple(results),
        )

    def to_json(self) -> dict[str, Any]:
        """The content of results.json. It has the number of seeds once, as the length of ``seeds``."""
        count = {"summary": {"__all__": {"__all__": {"count"}}}}
        return self.model_dump(mode="json", exclude=count)


class RunFolder:
    """The folder of a run. Only the first rank writes."""

    def __init__(self, output: str) -> None:
        self.uri = output
        self.model_uri = storage.join(output, "model")

    def open(self, identity: Identity, *, saves_model: bool) -> None:
        """Claims the folder. Raises ConfigError when it holds results of other settings, or another model."""
        uri = storage.join(self.uri, _RUN_NAME)
        if storage.exists(uri):
            before = read_record(Identity, uri, "choose another output, or delete the folder")
            names = [*identity, *(name for name in before if name not in identity)]
            for name in names:
                if before.get(name) != identity.get(name):
                    raise ConfigError(
                        f"{uri}: this folder has results of another {name}"
                        f"{_values(before.get(name), identity.get(name))}; choose another output, or delete"
                        " the folder"
                    )
            return
        if saves_model and storage.exists(storage.join(self.model_uri, "config.json")):
            raise ConfigError(f"{self.model_uri}: holds another model; choose another output")
        storage.put_bytes(uri, (json.dumps(identity, indent=1, sort_keys=True) + "\n").encode())

    def finished(self, seed: int) -> SeedResult | None:
        """The result of a seed that an earlier process finished."""
        uri = self._uri(seed, "json")
        if not storage.exists(uri):
            return None
        return read_record(SeedResult, uri, "delete it to train the seed again")

    def write_seed(self, result: SeedResult) -> None:
        """Writes the result of a seed, then removes its state."""
        raw = json.dumps(result.to_json(), indent=1, sort_keys=True) + "\n"
        storage.put_bytes(self._uri(result.seed, "json"), raw.encode())
        storage.delete(self._uri(result.seed, "state"))

    def save_state(self, seed: int, state: Mapping[str, Any]) -> None:
        """Writes the state of a seed in training."""
        buffer = io.BytesIO()
        torch.save(dict(state), buffer)
        storage.put_bytes(self._uri(seed, "state"), buffer.getvalue())

    def state(self, seed: int) -> bytes | None:
        """The saved state of a seed, or None if there is none."""
        uri = self._uri(seed, "state")
        return storage.read_bytes(uri) if storage.exists(uri) else None

    def load_state(self, raw: bytes, seed: int) -> dict[str, Any]:
        """The state in ``raw``, on the CPU. Raises CheckpointError when it is damaged."""
        try:
            loaded: dict[str, Any] = torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises many kinds for a damaged file
            uri = self._uri(seed, "state")
            raise CheckpointError(f"{uri}: damaged; delete it to train the seed again") from error
        return loaded

    def write_results(self, report: FinetuneReport) -> None:
        """Writes results.json."""
        raw = json.dumps(report.to_json(), indent=1, sort_keys=True) + "\n"
        storage.put_bytes(storage.join(self.uri, RESULTS_NAME), raw.encode())

    def _uri(self, seed: int, suffix: str) -> str:
        return storage.join(storage.join(self.uri, _SEEDS), f"seed-{seed}.{suffix}")


def _values(before: object, now: object) -> str:
    """The two values, unless they are digests."""
    if any(isinstance(value, str) and len(value) == 64 for value in (before, now)):
        return ""
    return f" ({before!r:.40}, now {now!r:.40})"
