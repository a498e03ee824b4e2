"""The check of row groups, which has a quick way for manifests of many shards."""

import pytest

from schemas.errors import CorpusError
from schemas.manifest import dump_manifest, parse_manifest
from tests.trainer.synthetic import manifest, set_entry


def with_groups(groups):
    shard = {
        "path": "train-32-0/shard.parquet",
        "rows": 1,
        "tokens": 1,
        "bytes": 1,
        "sha256": "0" * 64,
        "row_groups": groups,
        "languages": {},
    }
    return manifest([set_entry("train-32-0", 32, 0, [shard])], 200, "nsp")


@pytest.mark.parametrize("groups", [[], [1], [1024, 1024, 7], [2**40]])
def test_good_row_groups(groups):
    found = parse_manifest(dump_manifest(with_groups(groups)), "m")
    assert found["sets"][0]["shards"][0]["row_groups"] == groups


@pytest.mark.parametrize("groups", [[0], [4, -1], [1.5], [True], ["3"], [None], [[3]], {"0": 3}, "3", 3])
def test_bad_row_groups_are_named(groups):
    with pytest.raises(CorpusError, match=r"\$\.sets\[0\]\.shards\[0\]\.row_groups"):
        dump_manifest(with_groups(groups))
