"""Finds the plug-ins that a build's config names, and the versions of their code."""

from collections.abc import Iterator

from pipeline.config import SOURCE_READERS, BuildConfig
from schemas.plugins import load_plugin


def plugin_versions(config: BuildConfig) -> dict[str, str]:
    """Plug-in -> SHA-256 of its source, in the order of the names.

    Raises ConfigError that names the field when a plug-in cannot be imported.
    """
    names = dict(_plugins(config))
    return {name: load_plugin(name, names[name], object).sha256 for name in sorted(names)}


def _plugins(config: BuildConfig) -> Iterator[tuple[str, str]]:
    """Names and fields."""
    for number, source in enumerate(config.sources):
        if source.kind not in SOURCE_READERS:
            yield source.kind, f"sources.{number}.kind"
    for number, entry in enumerate(config.extraction.filters):
        yield entry.use, f"extraction.filters.{number}.use"
    if config.extraction.template_functions is not None:
        yield config.extraction.template_functions, "extraction.template_functions"
