"""Fine-tunes a pretrained model on a task and measures it, once for each seed."""

import copy
import json
import logging
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cluster import storage
from schemas.errors import ConfigError
from schemas.randomness import draws, key_from_text, permutation
from trainer.finetune_config import FinetuneConfig
from trainer.model import BertPretraining
from trainer.optim import build_optimizer, set_learning_rate
from trainer.ranks import pick_device
from trainer.saved import load_model
from trainer.schedule import Schedule, steps_of
from trainer.task_encoding import load_tokenizer, pack_encoded
from trainer.task_export import check_task_export, export_task_model
from trainer.task_model import TaskModel, freeze, reinitialize, with_dropout
from trainer.tasks import KINDS, EncodedSet, Figures, TaskKind

log = logging.getLogger(__name__)

RESULTS_NAME = "results.json"
_HEAD = key_from_text("trainer.finetune", "head")
_ORDER = key_from_text("trainer.finetune", "order")


@dataclass(frozen=True)
class SeedResult:
    """One training. ``epochs`` are the validation figures after each; ``best`` counts from 0."""

    seed: int
    best: int
    validation: Figures
    test: Mapping[str, Figures]
    epochs: tuple[Figures, ...]
    losses: tuple[float, ...]
    """Mean training loss of each epoch."""


def finetune(config: FinetuneConfig) -> dict[str, Any]:
    """Trains and measures every seed; writes results.json and returns what is in it.

    Raises ConfigError, InputError (a file, its line and what is wrong there), CheckpointError.
    """
    saved = load_model(config.model)
    if config.max_seq_length > saved.model.config.max_positions:
        positions = saved.model.config.max_positions
        raise ConfigError(f"max_seq_length: {config.max_seq_length}, the model has {positions} positions")
    tokenizer = load_tokenizer(config.tokenizer or config.model)
    pieces = tokenizer.get_vocab_size()
    if pieces != saved.model.config.vocab_size:
        raise ConfigError(f"tokenizer: {pieces} pieces, the model has {saved.model.config.vocab_size}")
    if config.save_model:
        check_task_export(saved.model.config, config.features)
    task = KINDS[config.task](config, tokenizer)
    sets = {
        "train": task.read(config.files.train, config.max_train_examples),
        "validation": task.read(config.files.validation),
        **{
            "/".join(filter(None, ("test", name, part))): examples
            for name, files in config.files.test.items()
            for part, examples in task.read_test(files).items()
        },
    }
    results: list[SeedResult] = []
    best: TaskModel | None = None
    for seed in config.seeds:
        result, model = _train_seed(config, saved.model, task, sets, seed)
        scores = [one.validation[config.chosen_metric] for one in results]
        if result.validation[config.chosen_metric] > max(scores, default=-math.inf):
            best = model
        results.append(result)
    if config.save_model and best is not None:
        where = storage.join(config.output, "model")
        export_task_model(best, where, config.tokenizer or config.model, task.labels, task.scale)
    report = _report(config, results, {name: len(one.examples) for name, one in sets.items()})
    raw = json.dumps(report, indent=1, sort_keys=True) + "\n"
    storage.put_bytes(storage.join(config.output, RESULTS_NAME), raw.encode())
    return report


def _train_seed(
    config: FinetuneConfig,
    pretrained: BertPretraining,
    task: TaskKind,
    sets: Mapping[str, EncodedSet],
    seed: int,
) -> tuple[SeedResult, TaskModel]:
    device = pick_device(config.use_gpu)
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
    torch.manual_seed(int(draws(seed, _HEAD)) >> 1)
    base = with_dropout(pretrained, config.dropout)
    reinitialize(base, config.reinitialize_layers)
    freeze(base, embeddings=config.freeze_embeddings, layers=config.freeze_layers)
    model = TaskModel(base, task.head, task.outputs, config.dropout, config.features).to(device)
    base.use_kernel(device, dtype)
    trainer = _Trainer(config, model, task, device, dtype)
    epochs: list[Figures] = []
    losses: list[float] = []
    best, weights = 0, copy.deepcopy(model.state_dict())
    per_epoch = -(-len(sets["train"].inputs) // config.batch_size)
    for epoch in range(config.epochs):
        order = permutation(len(sets["train"].inputs), seed, _ORDER, epoch)
        losses.append(
            trainer.train_epoch(sets["train"], order.tolist(), epoch * per_epoch, config.epochs * per_epoch)
        )
        epochs.append(task.measure(sets["validation"], trainer.outputs(sets["validation"])))
        log.info("seed %d epoch %d: loss %.4f, %s", seed, epoch + 1, losses[-1], epochs[-1])
        metric = config.chosen_metric
        if epoch == 0 or epochs[-1][metric] > epochs[best][metric]:
            best, weights = epoch, copy.deepcopy(model.state_dict())
        elif config.early_stop is not None and epoch - best >= config.early_stop:
            break
    model.load_state_dict(weights)
    test = {
        name.removeprefix("test/"): task.measure(one, trainer.outputs(one))
        for name, one in sets.items()
        if name.startswith("test/")
    }
    return SeedResult(seed, best, epochs[best], test, tuple(epochs), tuple(losses)), model


class _Trainer:
    """The model of one seed with its optimizer."""

    def __init__(
        self,
        config: FinetuneConfig,
        model: TaskModel,
        task: TaskKind,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.config, self.model, self.task = config, model, task
        self.device, self.dtype = device, dtype
        self.optimizer = build_optimizer(
            model, "adamw", learning_rate=config.learning_rate, weight_decay=config.weight_decay
        )

    def train_epoch(self, data: EncodedSet, order: list[int], first_step: int, total: int) -> float:
        """One pass; the mean loss of its steps."""
        config = self.config
        schedule = Schedule("linear", total, warmup=steps_of(config.warmup, total))
        self.model.train()
        losses = []
        for number, start in enumerate(range(0, len(order), config.batch_size)):
            inputs = [data.inputs[place] for place in order[start : start + config.batch_size]]
            set_learning_rate(self.optimizer, config.learning_rate * schedule.factor(first_step + number))
            self.optimizer.zero_grad()
            with self._autocast():
                output = self.model(pack_encoded(inputs).to(self.device))
            loss = self.task.loss(output, inputs)
            loss.backward()  # type: ignore[no-untyped-call]  # torch's
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.clip_norm)
            self.optimizer.step()
            losses.append(loss.detach())
        return float(torch.stack(losses).mean())

    def outputs(self, data: EncodedSet) -> list[Tensor]:
        """What the head says about each input, fp32 on the CPU."""
        self.model.eval()
        found: list[Tensor] = []
        by_length = sorted(range(len(data.inputs)), key=lambda place: len(data.inputs[place].ids))
        places: list[int] = []
        with torch.no_grad(), self._autocast():
            for start in range(0, len(by_length), 64):
                chosen = by_length[start : start + 64]
                inputs = [data.inputs[place] for place in chosen]
                output = self.model(pack_encoded(inputs).to(self.device)).float().cpu()
                sizes = [1 if self.task.head == "sequence" else len(one.ids) for one in inputs]
                parts = output.split(sizes)
                found += [part[0] if self.task.head == "sequence" else part for part in parts]
                places += chosen
        in_order = dict(zip(places, found, strict=True))
        return [in_order[place] for place in range(len(data.inputs))]

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)


def _report(config: FinetuneConfig, results: list[SeedResult], sizes: Mapping[str, int]) -> dict[str, Any]:
    def spread(values: list[float]) -> dict[str, float]:
        return {
            "median": statistics.median(values),
            "mean": statistics.fmean(values),
            "deviation": statistics.stdev(values) if len(values) > 1 else 0.0,
            "best": max(values),
        }

    names = list(results[0].validation)
    return {
        "task": config.task,
        "metric": config.chosen_metric,
        "examples": dict(sizes),
        "config": config.model_dump(mode="json"),
        "summary": {
            "validation": {name: spread([one.validation[name] for one in results]) for name in names},
            **{
                f"test/{test}": {name: spread([one.test[test][name] for one in results]) for name in names}
                for test in results[0].test
            },
        },
        "seeds": [
            {
                "seed": one.seed,
                "best_epoch": one.best + 1,
                "validation": one.validation,
                "test": dict(one.test),
                "epochs": list(one.epochs),
                "losses": list(one.losses),
            }
            for one in results
        ],
    }
