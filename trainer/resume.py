"""Where a run goes on, what it may change when it does, and the loop's own part of a checkpoint."""

import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from schemas.errors import CheckpointError, ConfigError
from trainer.checkpoint import CheckpointStore, LoadedCheckpoint
from trainer.config import TrainConfig
from trainer.corpus import Corpus
from trainer.optim import load_moments
from trainer.prepare import Network
from trainer.stability import SpikeGuard

log = logging.getLogger(__name__)

# Fields that say how a run is carried out, not what it computes: free to change at any start.
_FREE = (
    "run",
    "workers",
    "checkpoints",
    "logging",
    "evaluation",
    "compile",
    "compile_cache",
    "compile_mode",
    "kernels",
    "model.attention",
    "data.manifest",
    "data.read_threads",
    "data.read_ahead",
    "data.cache_bytes",
    "data.disk_cache",
    "data.disk_cache_bytes",
    "data.check_shards",
    "data.fixed_shapes",
    "stability.max_skipped",
    "stability.check_ranks_every",
)
# How a global batch is cut into micro-batches does not change its gradient.
_FREE_IN_PHASES = ".micro_batch_tokens"
_CORPUS = "data.corpus"


@dataclass
class Position:
    """How far a run has come. ``step`` counts the steps done and is all that data order and rates need."""

    step: int = 0
    tokens: int = 0
    first_loss: float | None = None
    last_loss: float | None = None


def open_store(run_uri: str, config: TrainConfig, world_size: int) -> CheckpointStore:
    """The checkpoints of the run, as rank 0 of ``world_size`` writes them."""
    settings = config.checkpoints
    return CheckpointStore(
        run_uri,
        keep=settings.keep,
        max_failed=settings.max_failed,
        sharded_by=world_size if settings.format == "sharded" else None,
        part_timeout=config.workers.collective_timeout_seconds,
    )


def await_saves(store: CheckpointStore) -> None:
    """Lets a save that is in flight when an error ends the run come to its end."""
    try:
        store.close(failed=True)
    except CheckpointError as error:
        log.warning("%s", error)


def newest_checkpoint(store: CheckpointStore, *, restart: bool) -> LoadedCheckpoint | None:
    """The newest verified checkpoint; None for a run that begins.

    Raises CheckpointError when there are checkpoints but none is good, unless ``restart``.
    """
    try:
        return store.latest_verified()
    except CheckpointError as error:
        if not restart:
            raise CheckpointError(
                f"{error}; --run.restart=true starts again at step 0, another run.name starts a new run"
            ) from error
        log.warning("%s; starting again at step 0 because run.restart is set", error)
        return None


def state_of(
    config: TrainConfig, corpus: Corpus, network: Network, guard: SpikeGuard, position: Position
) -> dict[str, Any]:
    """What a checkpoint holds."""
    return {
        "model": network.model.state_dict(),
        "optimizer": network.optimizer.state_dict(),
        "trainer": {
            "position": asdict(position),
            "guard": guard.state(),
            "identity": identity(config, corpus.digest),
            "config": config.model_dump(mode="json"),
            "model": network.config.model_dump(mode="json"),
            "corpus": {"uri": corpus.uri, "sha256": corpus.digest},
        },
    }


def restore(
    found: LoadedCheckpoint, config: TrainConfig, corpus: Corpus, network: Network, guard: SpikeGuard
) -> tuple[Position, list[str]]:
    """Loads the checkpoint into ``network`` and ``guard``; its position, and the changes of the config.

    Raises ConfigError for changes that the config does not accept, CheckpointError.
    """
    with found as checkpoint:
        before = checkpoint.trainer.get("identity")
        if not isinstance(before, dict):
            raise CheckpointError(f"{found.uri}: does not say what run it belongs to")
        now = identity(config, corpus.digest)
        changes = check_identity(before, now, config.run.name, config.run.accept_changes)
        state = checkpoint.load()
    try:
        _check_kinds(network.model.state_dict(), state["model"])
        network.model.load_state_dict(state["model"])
        load_moments(network.optimizer, state["optimizer"])
        guard.load(state["trainer"]["guard"])
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{found.uri}: does not fit the model: {' '.join(str(error).split())[:300]}"
        ) from error
    return _position_of(state["trainer"].get("position"), found), changes


def _check_kinds(wanted: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    """Raises ValueError for a tensor of another type, which torch would convert without a word."""
    for name in wanted.keys() & found.keys():
        if wanted[name].dtype != found[name].dtype:
            raise ValueError(f"{name} is {found[name].dtype}, the model's is {wanted[name].dtype}")


def _position_of(kept: Any, found: LoadedCheckpoint) -> Position:
    try:
        position = Position(**kept)
    except TypeError as error:
        raise CheckpointError(f"{found.uri}: does not say how far the run has come") from error
    counts, losses = (position.step, position.tokens), (position.first_loss, position.last_loss)
    sound = all(type(count) is int and count >= 0 for count in counts)
    if not sound or not all(loss is None or isinstance(loss, int | float) for loss in losses):
        raise CheckpointError(f"{found.uri}: does not say how far the run has come: {kept!r:.100}")
    if position.step != found.step:
        raise CheckpointError(f"{found.uri}: is of step {found.step}, its position says {position.step}")
    return position


def identity(config: TrainConfig, corpus_digest: str) -> dict[str, Any]:
    """Dotted field -> value of everything that decides what the run computes."""
    fields = dict(_leaves(config.model_dump(mode="json"), ""))
    kept = {
        name: value
        for name, value in fields.items()
        if not _under(name, _FREE) and not name.endswith(_FREE_IN_PHASES)
    }
    # Where the corpus lies is free; that it is the same one is not.
    kept[_CORPUS] = corpus_digest
    return kept


def check_identity(before: dict[str, Any], now: dict[str, Any], run: str, accepted: list[str]) -> list[str]:
    """The accepted differences, each as "field: was X, is Y".

    Raises ConfigError that lists the differences which ``accepted`` does not cover.
    """
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    changes = {name: f"{name}: was {before.get(name)!s:.60}, is {now.get(name)!s:.60}" for name in names}
    refused = [name for name in names if not _under(name, accepted)]
    if refused:
        listed = "; ".join(changes[name] for name in refused)
        fields = ", ".join(sorted({name.partition(".")[0] for name in refused}))
        raise ConfigError(
            f"run.name: run {run!r} was started with another config ({listed}); choose another name, or go on"
            f" with --run.accept_changes='[{fields}]': steps done stay done, and schedule, phases and data"
            " order are those of the new config from the next step on"
        )
    return [changes[name] for name in names]


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{name}.{index}")
    else:
        yield name, value


def _under(name: str, prefixes: tuple[str, ...] | list[str]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)
