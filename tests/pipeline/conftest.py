"""Provides a build for the tests of several modules."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from cluster.jobs.config_file import validate
from tests.pipeline import builds
from tests.support.ray_cluster import RayCluster


@dataclass(frozen=True)
class Built:
    """The folder of a finished build of ``builds.held_out_config``, and its published files."""

    folder: Path
    files: dict[str, str]


@pytest.fixture(scope="session")
def built(ray_session: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A build without failures. A test may run it again, which changes nothing."""
    from pipeline.build import build
    from pipeline.config import BuildConfig

    folder = tmp_path_factory.mktemp("build") / "corpus"
    build(validate(BuildConfig, builds.held_out_config(folder), "test"))
    return Built(folder, builds.published_files(folder))
