"""The results of build.py as JSON, and as Markdown beside the forecast of `plan`."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from benchmarks.corpus.large.corpus import Made
from benchmarks.rates.measure_rates import cpu
from bertmill.planning.forecast import CorpusSize, forecast_build, serial_seconds
from bertmill.planning.rates import Rates, load_rates
from cluster.jobs.config_file import resolve_config
from pipeline.config import BuildConfig

_STAGES = (
    "| stage | seconds | CPU seconds | busy cores | MB/s of wikitext | largest worker, GB |",
    "|---|---:|---:|---:|---:|---:|",
)
_PEAKS = ("| process | peak memory, GB |", "|---|---:|")
_FORECAST = (
    "| stage | CPU s | `plan`, core s | plan / CPU | measured s | `plan` s | plan / measured |",
    "|---|---:|---:|---:|---:|---:|---:|",
)


@dataclass
class Run:
    """One start of the build until its end."""

    seconds: float
    status: int
    stages: dict[str, float] = field(default_factory=dict)
    """Stage -> seconds until the next one began."""
    cpu: dict[str, float] = field(default_factory=dict)
    """Stage -> CPU seconds of all processes in that time, which hardly depend on other load."""
    peaks: dict[str, int] = field(default_factory=dict)
    """Kind of process -> bytes of the largest one."""
    cpu_by_role: dict[str, float] = field(default_factory=dict)
    """Kind of process -> CPU seconds of all of them."""
    workers: dict[str, int] = field(default_factory=dict)
    """Stage -> bytes of the largest worker in it, without shared memory."""


@dataclass
class Results:
    """What the finished parts gave. A part that has not run is None."""

    config: dict[str, Any]
    """Fields of the build's config."""
    cores: int
    kills: int
    machine: str
    made: Made | None = None
    compressed_bytes: int = 0
    generated_seconds: float = 0.0
    run: Run | None = None
    """The build without kills."""
    written: dict[str, int] = field(default_factory=dict)
    """Part of the output -> bytes."""
    amounts: dict[str, float] = field(default_factory=dict)
    """Amount of work, as `CorpusSize` names it -> what the build had."""
    killed_seconds: float | None = None
    equal: bool | None = None
    """Whether the killed build published the same bytes."""
    verified_seconds: float | None = None
    verify_cpu_seconds: float = 0.0
    verify_peak_bytes: int = 0
    """The largest process of verify."""
    rates: dict[str, Any] | None = None
    """Rates of this machine (bertmill/planning/rates.json)."""

    @staticmethod
    def empty(config: dict[str, Any], cores: int, kills: int) -> "Results":
        """The results before the first part, on this machine."""
        machine = f"{cpu()}, load {os.getloadavg()[0]:.1f}, {datetime.now(UTC).date().isoformat()}"
        return Results(config, cores, kills, machine)

    @staticmethod
    def load(path: Path) -> "Results":
        """The results in a file."""
        return TypeAdapter(Results).validate_json(path.read_bytes())

    def dump(self) -> str:
        """The results as JSON."""
        return TypeAdapter(Results).dump_json(self, indent=1).decode()

    def report(self) -> str:
        """The results so far as Markdown."""
        return "\n".join([*self._summary(), *(() if self.run is None else self._tables(self.run)), ""])

    def _summary(self) -> Iterator[str]:
        if self.made is None:
            return
        made, wikitext = self.made, self.made.wikitext_bytes / 1e6
        passes = self.config["instances"]["passes"]
        yield (
            f"{wikitext:,.0f} MB of wikitext in {made.pages:,} pages ({made.planted:,} planted near"
            f" duplicates) and {made.files} files, {self.compressed_bytes / 1e6:,.0f} MB compressed,"
            f" {passes} passes, exact and near dedup, {self.cores} cores. {self.machine}."
        )
        yield ""
        facts = [f"Generation {self.generated_seconds:.0f} s."]
        if self.run is not None:
            sizes = ", ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in self.written.items())
            facts.append(f"Build {self.run.seconds:.0f} s, {wikitext / self.run.seconds:.2f} MB/s.")
            facts.append(f"Written: {sizes}.")
        if self.killed_seconds is not None:
            bytes_are = "the same bytes" if self.equal else "OTHER BYTES"
            facts.append(f"Killed {self.kills} times: {self.killed_seconds:.0f} s, {bytes_are}.")
        if self.verified_seconds is not None:
            speed = self.written.get("published", 0) / 1e6 / max(self.verify_cpu_seconds, 1e-9)
            facts.append(
                f"`bertmill verify` {self.verified_seconds:.0f} s, no problem, {speed:.1f} MB of output in a"
                f" CPU second, {self.verify_peak_bytes / 1e9:.2f} GB in its largest process."
            )
        yield " ".join(facts)

    def _tables(self, run: Run) -> Iterator[str]:
        wikitext = self.made.wikitext_bytes / 1e6 if self.made else 0.0
        yield from ("", *_STAGES)
        for name, spent in run.stages.items():
            cores = run.cpu[name] / spent
            largest = run.workers.get(name, 0) / 1e9
            figures = (
                f"{spent:.0f} | {run.cpu[name]:.0f} | {cores:.1f} | {wikitext / spent:.2f} | {largest:.2f}"
            )
            yield f"| {name} | {figures} |"
        yield from ("", *_PEAKS)
        for name, size in sorted(run.peaks.items()):
            yield f"| {name} | {size / 1e9:.2f} |"
        share = run.cpu_by_role.get("driver", 0.0) / sum(run.cpu_by_role.values())
        yield from ("", f"The driver used {share:.1%} of the CPU time.", "", *_FORECAST)
        yield from self._forecast(run)

    def _forecast(self, run: Run) -> Iterator[str]:
        """What `plan` says for the same cores, stage by stage, then its amounts of work."""
        rates = load_rates() if self.rates is None else Rates.model_validate_json(json.dumps(self.rates))
        size = CorpusSize.of(resolve_config(BuildConfig, self.config), self.compressed_bytes, rates)
        stages = forecast_build(size, self.cores, self.cores, rates)
        for stage in stages:
            measured, cpu_time = run.stages.get(stage.name, 0.0), run.cpu.get(stage.name, 0.0)
            # The serial part keeps one core busy.
            work = stage.core_hours * 3600 + serial_seconds(stage.name, size, rates)
            yield (
                f"| {stage.name} | {cpu_time:.1f} | {work:.1f} | {_ratio(work, cpu_time)} | {measured:.0f} |"
                f" {stage.seconds:.0f} | {_ratio(stage.seconds, measured)} |"
            )
        predicted = sum(stage.seconds for stage in stages)
        yield f"| total | | | | {run.seconds:.0f} | {predicted:.0f} | {_ratio(predicted, run.seconds)} |"
        shares = ", ".join(
            f"{name.replace('_', ' ')} {_ratio(getattr(size, name), found)}"
            for name, found in self.amounts.items()
        )
        yield from ("", f"Amounts of work, plan / measured: {shares}. Rates: {rates.build.measured}.")


def _ratio(planned: float, measured: float) -> str:
    return f"{planned / measured:.2f}" if measured else "-"
