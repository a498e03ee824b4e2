"""Fine-tunes a pretrained model on a task and evaluates it, once for each seed."""

from collections.abc import Callable, Mapping

from schemas.errors import ConfigError
from trainer.distributed.ranks import Ranks, pick_device, single_rank
from trainer.export.load_model import SavedModel, content_digest, load_model
from trainer.export.tokenizer_folder import load_tokenizer
from trainer.finetuning.config import FinetuneConfig
from trainer.finetuning.loop import SeedTraining, Stopped, steps_per_epoch
from trainer.finetuning.progress import Clock, Event, SeedDone
from trainer.finetuning.records import SeedResult
from trainer.finetuning.results import RESULTS_NAME, FinetuneReport, RunFolder, identity_of
from trainer.finetuning.saved.export import check_task_export, export_task_model
from trainer.finetuning.saved.settings import TaskSettings
from trainer.finetuning.tasks.kinds import KINDS, EncodedSet, TaskKind

__all__ = ["RESULTS_NAME", "finetune"]


def finetune(
    config: FinetuneConfig,
    *,
    ranks: Ranks | None = None,
    stop_requested: Callable[[], bool] = lambda: False,
    on_event: Callable[[Event], None] = lambda _: None,
) -> FinetuneReport:
    """Trains and evaluates every seed and returns the content of results.json, on all ``ranks``.

    Does not repeat a seed that OUTPUT already has, and continues one with a saved state from there. When
    ``stop_requested`` becomes true, it saves the state and reports the finished seeds, without
    ``complete``. Raises ConfigError, CheckpointError, and InputError that names a file, the line and the
    problem.
    """
    ranks = ranks or single_rank(pick_device(config.use_gpu))
    saved = load_model(config.model)
    task, sets = _read(config, saved)
    folder = RunFolder(config.output)
    error: Exception | None = None
    if ranks.rank == 0:
        try:
            identity = identity_of(config, content_digest(saved.model), sets, task.labels)
            folder.open(identity, saves_model=config.save_model)
        except Exception as caught:
            error = caught
    ranks.fail_together(error)
    finished = ranks.broadcast_from_rank0({seed: folder.finished(seed) for seed in config.seeds})
    return _Run(config, saved, task, sets, ranks, folder, finished).run(stop_requested, on_event)


def _read(config: FinetuneConfig, saved: SavedModel) -> tuple[TaskKind, dict[str, EncodedSet]]:
    """The task and its sets: train, validation, and test/NAME or test/NAME/PART."""
    if config.max_seq_length > saved.model.config.max_positions:
        positions = saved.model.config.max_positions
        raise ConfigError(f"max_seq_length: {config.max_seq_length}, but the model has {positions} positions")
    tokenizer = load_tokenizer(config.tokenizer or saved.uri)
    tokenizer.no_padding()
    size, model_size = max(tokenizer.get_vocab().values()) + 1, saved.model.config.vocab_size
    # Some models have unused rows beyond their vocabulary.
    if size > model_size:
        raise ConfigError(f"tokenizer: its vocabulary has {size} entries, but the model's has {model_size}")
    if config.save_model:
        check_task_export(saved.model.config, config.features, KINDS[config.task].head)
    task = KINDS[config.task](config, tokenizer)
    return task, {
        "train": task.read(config.files.train, config.max_train_examples),
        "validation": task.read(config.files.validation, config.max_eval_examples),
        **{
            "/".join(filter(None, ("test", name, part))): examples
            for name, files in config.files.test.items()
            for part, examples in task.read_test(files, config.max_eval_examples).items()
        },
    }


class _Run:
    """The seeds of a run, some of which may be finished."""

    def __init__(
        self,
        config: FinetuneConfig,
        saved: SavedModel,
        task: TaskKind,
        sets: Mapping[str, EncodedSet],
        ranks: Ranks,
        folder: RunFolder,
        finished: Mapping[int, SeedResult | None],
    ) -> None:
        self.config, self.saved, self.task, self.sets = config, saved, task, sets
        self.ranks, self.folder = ranks, folder
        self.results = {seed: result for seed, result in finished.items() if result is not None}

    def run(self, stop_requested: Callable[[], bool], on_event: Callable[[Event], None]) -> FinetuneReport:
        for seed, result in self.results.items():
            on_event(self._event(seed, result, resumed=True))
        left = [seed for seed in dict.fromkeys(self.config.seeds) if seed not in self.results]
        per_seed = self.config.epochs * steps_per_epoch(self.config, self.sets["train"])
        clock = Clock(len(left) * per_seed)
        for seed in left:
            training = self._start(seed)
            clock.skip(training.steps_done)
            try:
                result = training.run(self.folder, clock, stop_requested, on_event)
            except Stopped:
                break
            clock.skip(per_seed - training.steps_done)
            self._keep(seed, result, training)
            on_event(self._event(seed, result, resumed=False))
        report = self._report()
        if self.ranks.rank == 0:
            self.folder.write_results(report)
        self.ranks.barrier()
        return report

    def _start(self, seed: int) -> SeedTraining:
        training = SeedTraining(self.config, self.saved.model, self.task, self.sets, seed, self.ranks)
        raw = self.ranks.broadcast_from_rank0(self.folder.state(seed) if self.ranks.rank == 0 else None)
        if raw is not None:
            training.resume(self.folder.load_state(raw, seed))
        return training

    def _keep(self, seed: int, result: SeedResult, training: SeedTraining) -> None:
        """Writes the seed's result, after its model if that is the best so far."""
        metric = self.task.metric
        best = max((other.validation[metric] for other in self.results.values()), default=None)
        self.results[seed] = result
        if self.ranks.rank != 0:
            return
        if self.config.save_model and (best is None or result.validation[metric] > best):
            export_task_model(
                training.model,
                self.folder.model_uri,
                self.config.tokenizer or self.saved.uri,
                self.task.labels,
                self.task.scale,
                TaskSettings.of(self.config, no_answer=self.task.no_answer),
            )
        self.folder.write_seed(result)
        self.folder.write_results(self._report())

    def _report(self) -> FinetuneReport:
        ordered = [self.results[seed] for seed in dict.fromkeys(self.config.seeds) if seed in self.results]
        sizes = {name: len(data.examples) for name, data in self.sets.items()}
        return FinetuneReport.of(self.config, self.task.metric, ordered, sizes)

    def _event(self, seed: int, result: SeedResult, *, resumed: bool) -> SeedDone:
        metric = self.task.metric
        return SeedDone(seed, result.best_epoch, metric, result.validation[metric], resumed)
