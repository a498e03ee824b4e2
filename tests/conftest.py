"""Fixtures shared by all tests: one local Ray for the session."""

from collections.abc import Iterator

import pytest

from tests.ray_cluster import RayCluster, local_ray


@pytest.fixture(scope="session")
def ray_session() -> Iterator[RayCluster]:
    """A local Ray of four logical CPUs; the driver process is connected to it."""
    with local_ray() as cluster:
        yield cluster
