"""Traces a window of steps with torch.profiler and stores the trace in the folder of the run."""

import logging

from torch.profiler import profile, supported_activities

from cluster import scratch, storage
from schemas.errors import StorageError
from trainer.config import Profile

logger = logging.getLogger(__name__)


class ProfileWindow:
    """The trace of the steps that the config names, on one rank of one attempt.

    A window that an earlier attempt has passed is not traced. A trace that cannot be stored is logged.
    """

    def __init__(self, settings: Profile | None, run_uri: str, attempt: int) -> None:
        self._first = settings.at_step if settings else 0
        self._last = settings.at_step + settings.steps - 1 if settings else 0
        self._folder = storage.join(run_uri, "profile")
        self._attempt = attempt
        self._profiler: profile | None = None
        self._step = 0

    def start_step(self, step: int) -> None:
        """Call before ``step``, counted from 1."""
        self._step = step
        if self._first <= step <= self._last and self._profiler is None:
            self._profiler = profile(activities=list(supported_activities()), record_shapes=True)
            self._profiler.start()

    def end_step(self) -> str | None:
        """Call after the step. Returns the URI of the trace if the window ends with this step."""
        return self.close() if self._profiler is not None and self._step >= self._last else None

    def close(self) -> str | None:
        """Stores the trace of a window that has started, even if its last step is missing."""
        if self._profiler is None:
            return None
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        name = f"attempt-{self._attempt:06d}-step-{self._step:08d}.pt.trace.json.gz"
        uri = storage.join(self._folder, name)
        try:
            with scratch.folder("profile") as folder:
                profiler.export_chrome_trace(str(folder / name))
                storage.upload_file(folder / name, uri)
        except (OSError, RuntimeError, StorageError) as error:
            logger.warning("%s: the trace could not be stored: %s", uri, error)
            return None
        return uri
