"""Copies the dumps of several wikis to a folder or a store over three connections, and checks them."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from bertmill.fetching.download import HashMismatchError, download, remote_size
from bertmill.fetching.dumps import Dump, RemoteFile, find_dump
from bertmill.fetching.progress import FetchProgress
from bertmill.fetching.target import DumpFolder
from schemas.errors import BertmillError, InputError, StorageError

CONNECTIONS = 3
"""Wikimedia's servers allow three connections per address (https://dumps.wikimedia.org)."""

PROGRESS_SECONDS = 10.0
_VERSIONS = 3
"""How often the files of a dump may be replaced on the server while they are fetched."""


@dataclass(frozen=True)
class FetchPlan:
    """What to fetch, from which server, and where to."""

    wikis: tuple[str, ...]
    """Database names."""
    date: str | None
    """YYYY-MM-DD, or None for the newest complete dump of each wiki."""
    base_url: str
    target: str
    scratch: str | None = None
    """Local folder for partial files when the target is not local."""
    all_or_nothing: bool = True
    """Fetch nothing if a wiki has no dump, for instance because it is misspelled."""


@dataclass(frozen=True)
class _Task:
    """A step of fetching a wiki, which returns the steps that follow it."""

    wiki: str
    run: "Callable[[], list[_Task]]"


@dataclass
class _Version:
    """The files of one dump as the server lists them now."""

    dump: Dump
    folder: DumpFolder
    number: int
    files_left: int = 0


class Fetcher:
    """Fetches the dumps of a plan. ``report`` gets a line for every complete dump, and progress lines."""

    def __init__(self, plan: FetchPlan, report: Callable[[str], None]) -> None:
        self._plan, self._report = plan, report
        self._progress = FetchProgress()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._failures: dict[str, Exception] = {}

    def run(self) -> None:
        """Fetches all dumps. Once all are found, a wiki that fails does not stop the others.

        Raises the error of the wiki that failed, or an error that names all wikis that failed.
        """
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            try:
                downloads = self._run_all(pool, [self._find_task(wiki) for wiki in self._plan.wikis])
                if self._plan.all_or_nothing:
                    self._raise_failures()
                self._run_all(pool, downloads, follow=True)
            except BaseException:
                self._stopped.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        self._raise_failures()

    def _run_all(self, pool: ThreadPoolExecutor, tasks: Iterable[_Task], follow: bool = False) -> list[_Task]:
        """Runs the tasks, and those that follow them, or returns the latter."""
        running: dict[Future[list[_Task]], _Task] = {pool.submit(task.run): task for task in tasks}
        later: list[_Task] = []
        while running:
            done, _ = wait(running, timeout=PROGRESS_SECONDS, return_when=FIRST_COMPLETED)
            for job in done:
                following = self._outcome(running.pop(job), job)
                if follow:
                    running |= {pool.submit(task.run): task for task in following}
                else:
                    later += following
            if self._progress.is_due(PROGRESS_SECONDS):
                self._report(self._progress.line())
        return later

    def _outcome(self, task: _Task, job: "Future[list[_Task]]") -> list[_Task]:
        try:
            return job.result()
        except HashMismatchError as error:
            self._failures.setdefault(task.wiki, StorageError(str(error)))
        except BertmillError as error:
            self._failures.setdefault(task.wiki, error)
        except FileNotFoundError as error:
            self._failures.setdefault(task.wiki, InputError(f"{error}: no such file on the server"))
        return []

    def _find_task(self, wiki: str) -> _Task:
        return _Task(wiki, lambda: self._find(wiki))

    def _find(self, wiki: str) -> list[_Task]:
        plan = self._plan
        # A complete copy of a given date needs no request: the server may have deleted the dump.
        if plan.date is not None and self._is_complete(wiki, plan.date):
            return []
        dump = find_dump(plan.base_url, wiki, plan.date)
        if plan.date is None and self._is_complete(wiki, dump.date):
            return []
        return self._start(_Version(dump, self._folder(wiki, dump.date), 1))

    def _folder(self, wiki: str, date: str) -> DumpFolder:
        return DumpFolder(self._plan.target, wiki, date, self._plan.scratch)

    def _is_complete(self, wiki: str, date: str) -> bool:
        folder = self._folder(wiki, date)
        complete = folder.is_complete()
        if complete:
            self._report(f"{wiki} {date}: already complete: {folder.uri}")
        return complete

    def _start(self, version: _Version) -> list[_Task]:
        """The downloads of the files that are missing."""
        wiki = version.dump.wiki
        missing = version.folder.prepare(version.dump)
        version.files_left = len(missing)
        for file in missing:
            self._progress.expect(file.name, remote_size(file.url))
        finish = _Task(wiki, lambda: self._finish(version))
        return [_Task(wiki, self._fetching(version, file, finish)) for file in missing] or [finish]

    def _fetching(self, version: _Version, file: RemoteFile, finish: _Task) -> Callable[[], list[_Task]]:
        def fetch() -> list[_Task]:
            part = version.folder.part(file)
            try:
                try:
                    download(file, part, self._progress, self._stopped.is_set)
                except HashMismatchError:
                    # Try once more from the start, because a byte may have been lost in transfer.
                    download(file, part, self._progress, self._stopped.is_set)
                version.folder.publish(file)
                self._progress.file_done()
            except (HashMismatchError, FileNotFoundError):
                # When the server has replaced its files, `finish` notices and starts again.
                if self._latest(version).files == version.dump.files:
                    raise
            with self._lock:
                version.files_left -= 1
                return [finish] if version.files_left == 0 else []

        return fetch

    def _latest(self, version: _Version) -> Dump:
        return find_dump(self._plan.base_url, version.dump.wiki, version.dump.date)

    def _finish(self, version: _Version) -> list[_Task]:
        """Declares a dump complete, or starts again when the server has replaced its files."""
        dump, folder = version.dump, version.folder
        latest = self._latest(version)
        if latest.files != dump.files:
            if version.number == _VERSIONS:
                raise StorageError(f"{dump.url}: the server keeps replacing its files; try again later")
            self._report(f"{dump.wiki} {dump.date}: the server has replaced files, fetching them again")
            return self._start(_Version(latest, folder, version.number + 1))
        size = folder.finish(dump)
        files = f"{len(dump.files)} file{'s' if len(dump.files) > 1 else ''}"
        self._report(f"{dump.wiki} {dump.date}: {files}, {size / 1e6:,.1f} MB, checked: {folder.uri}")
        return []

    def _raise_failures(self) -> None:
        if len(self._failures) == 1:
            raise next(iter(self._failures.values()))
        if self._failures:
            for wiki, error in sorted(self._failures.items()):
                self._report(f"failed: {wiki}: {error}")
            raise InputError(f"{len(self._failures)} wikis failed: {', '.join(sorted(self._failures))}")
