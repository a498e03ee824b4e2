"""The start of one attempt: finds the newest verified checkpoint, loads it, and then claims the run."""

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from torch import Tensor

from cluster.jobs.lease import Claimant
from schemas.errors import BertmillError, CheckpointError, ConfigError
from trainer.checkpoint.files import TrainingState
from trainer.checkpoint.folders import newest_committed
from trainer.checkpoint.manifest import CorpusReference, Position, RunState
from trainer.checkpoint.reading import LoadedCheckpoint
from trainer.checkpoint.store import CheckpointStore
from trainer.config import TrainConfig
from trainer.data.corpus import Corpus
from trainer.distributed.ranks import Ranks
from trainer.distributed.sharding import load_unsharded
from trainer.hooks import Hooks
from trainer.optim.optimizers import load_moments
from trainer.optim.spike_guard import SpikeGuard
from trainer.startup.identity import accepted_changes, field_defaults, identity_of
from trainer.startup.setup import Network, keep_start_digest, load_start_weights

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Attempt:
    """One attempt at a run, as one rank sees it."""

    number: int
    folder_suffix: str
    """How the names of the attempt's checkpoint folders end."""
    store: CheckpointStore | None
    """The store of rank 0, or None on other ranks."""
    checkpoint_uri: str | None
    """The checkpoint to resume from, or None for a new run."""


@dataclass(frozen=True)
class Source:
    """The checkpoint that a start found. A newer one may be committed before the run is claimed."""

    uri: str | None
    """None for a new run."""
    verified: LoadedCheckpoint | None = None
    """The same checkpoint on rank 0, already verified."""
    newest: str | None = None
    """The newest committed checkpoint on rank 0, which may be damaged."""


def open_store(config: TrainConfig, ranks: Ranks, hooks: Hooks, cleanup: ExitStack) -> CheckpointStore | None:
    """The checkpoints of the run, on rank 0, once no other process owns the run. Changes nothing.

    Raises LeaseHeldError, FencedError on all ranks. See cluster/jobs/lease.py.
    """
    store, error = None, None
    if ranks.rank == 0:
        run, settings = config.run, config.checkpoints
        store = CheckpointStore(
            run.uri,
            Claimant(
                job=hooks.job,
                take_over=run.take_over,
                seconds=run.lease_seconds,
                free_attempt=hooks.free_attempt,
            ),
            keep=settings.keep,
            keep_every=settings.keep_every,
            max_failed=settings.max_failed,
            part_timeout=config.workers.collective_timeout_seconds,
        )
        cleanup.callback(_close_store, store)
        try:
            store.await_free()
        except BertmillError as caught:
            error = caught
    ranks.fail_together(error)
    return store


def find_source(store: CheckpointStore | None, config: TrainConfig, ranks: Ranks) -> Source:
    """The checkpoint to resume from. Raises CheckpointError, StorageError on all ranks."""
    source, error = Source(None), None
    if store is not None:
        try:
            source = _source(store, config)
        except BertmillError as caught:
            error = caught
    ranks.fail_together(error)
    return replace(source, uri=ranks.broadcast_from_rank0(source.uri))


def _source(store: CheckpointStore, config: TrainConfig) -> Source:
    newest = newest_committed(store.run_uri)
    verified = _newest_checkpoint(store, restart=config.run.restart)
    return Source(verified.uri if verified else None, verified, newest)


def claim(
    store: CheckpointStore | None, source: Source, config: TrainConfig, ranks: Ranks
) -> tuple[Attempt, Source]:
    """Takes over the run, with a newer checkpoint than ``source`` if the last owner has saved one since.

    Raises CheckpointError, StorageError on all ranks.
    """
    number, error = 0, None
    if store is not None:
        try:
            number = store.acquire_lease()
            if newest_committed(store.run_uri) != source.newest:
                source = _source(store, config)
        except BertmillError as caught:
            error = caught
    ranks.fail_together(error)
    suffix = store.folder_suffix if store else ""
    number, suffix, uri = ranks.broadcast_from_rank0((number, suffix, source.uri))
    return Attempt(number, suffix, store, uri), replace(source, uri=uri)


def _close_store(store: CheckpointStore) -> None:
    """Waits for a save that is in flight when an error ends the run."""
    try:
        store.close(failed=True)
    except CheckpointError as error:
        logger.warning("%s", error)


def _newest_checkpoint(store: CheckpointStore, *, restart: bool) -> LoadedCheckpoint | None:
    """The newest verified checkpoint, or None for a new run.

    Raises CheckpointError when there are checkpoints but none verifies, unless ``restart``.
    """
    try:
        return store.latest_verified()
    except CheckpointError as error:
        if not restart:
            raise CheckpointError(
                f"{error}; --run.restart=true restarts at step 0, another run.name starts a new run"
            ) from error
        logger.warning("%s; restarting at step 0 because run.restart is set", error)
        return None


def state_of(
    config: TrainConfig,
    corpus: Corpus,
    network: Network,
    guard: SpikeGuard,
    position: Position,
    tokenizer: Mapping[str, bytes],
) -> TrainingState:
    """What a checkpoint holds."""
    run = RunState(
        position=position.model_copy(),
        spike_guard=guard.state(),
        identity=identity_of(config, corpus.digest, network.digests),
        config=config.model_dump(mode="json"),
        # With the RoPE base of the phase, which an export needs.
        model=network.model.config.model_dump(mode="json"),
        corpus=CorpusReference(
            uri=corpus.uri,
            sha256=corpus.digest,
            vocabulary_sha256=corpus.manifest.vocabulary.sha256,
            languages=list(corpus.languages),
        ),
    )
    ema = network.average.state_dict() if network.average else {}
    return TrainingState(network.model.state_dict(), network.optimizer.state_dict(), run, ema, tokenizer)


def resume(
    checkpoint: LoadedCheckpoint | None,
    config: TrainConfig,
    corpus: Corpus,
    network: Network,
    guard: SpikeGuard,
) -> tuple[Position, list[str]]:
    """Loads the checkpoint into ``network`` and ``guard``, or the start weights of a new run.

    Returns the position and the config's changes.

    Raises ConfigError for changes that the config does not accept, CheckpointError.
    """
    if checkpoint is None:
        load_start_weights(config, corpus, network)
        if network.average is not None:
            network.average.restart()
        return Position(), []
    vocabulary = checkpoint.run.corpus.vocabulary_sha256
    if vocabulary not in (None, corpus.manifest.vocabulary.sha256):
        raise ConfigError(
            f"data.manifest: {corpus.uri} has another vocabulary than run {config.run.name!r} was trained"
            " with, so its token ids mean other subwords; start a new run"
        )
    keep_start_digest(config, network, checkpoint.run)
    now = identity_of(config, corpus.digest, network.digests)
    changes = accepted_changes(
        checkpoint.run.identity, now, field_defaults(config), config.run.name, config.run.accept_changes
    )
    _load_into(network, guard, checkpoint)
    for change in changes:
        logger.warning("run %s continues with a changed config: %s", config.run.name, change)
    position = checkpoint.run.position
    if position.step != checkpoint.step:
        raise CheckpointError(
            f"{checkpoint.uri}: is of step {checkpoint.step}, but its manifest records step {position.step}"
        )
    return position.model_copy(), changes


def check_position(position: Position, total_steps: int) -> None:
    """Raises ConfigError when the run has done more steps than the config plans."""
    if position.step > total_steps:
        raise ConfigError(
            f"phases: the run has done {position.step} steps, but the config plans only {total_steps}"
        )


def _load_into(network: Network, guard: SpikeGuard, checkpoint: LoadedCheckpoint) -> None:
    state = checkpoint.load(keep_files=True)
    try:
        _check_dtypes(network.model.state_dict(), dict(state.model))
        load_unsharded(network.model, state.model)
        load_moments(network.optimizer, dict(state.optimizer))
        if network.average is not None and state.ema:
            network.average.load_state_dict(state.ema)
        elif network.average is not None:
            # The average is new in the config, as run.accept_changes allows.
            network.average.restart()
        guard.load(state.run.spike_guard)
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise CheckpointError(f"{checkpoint.uri}: does not fit the model: {reason}") from error


def _check_dtypes(expected: dict[str, Tensor], actual: dict[str, Tensor]) -> None:
    """Raises ValueError for a tensor of another type, which torch would convert silently."""
    for name in expected.keys() & actual.keys():
        if expected[name].dtype != actual[name].dtype:
            raise ValueError(f"{name} is {actual[name].dtype}, but the model has {expected[name].dtype}")
