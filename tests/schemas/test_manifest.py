"""The check of shards and of the seal, which have quick ways for manifests of many shards."""

import json

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


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("path", "../shard"), ("path", "/shard"), ("path", 7), ("sha256", "0" * 63), ("sha256", "G" * 64),
        ("sha256", None), ("rows", -1), ("rows", True), ("tokens", 1.5), ("bytes", "1"), ("languages", []),
        ("languages", {"en": -1}), ("languages", {"en": True}), ("row_groups", None), ("extra", 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", [0, 2])
def test_bad_shards_are_named_wherever_they_stand(field, value, place):
    content = with_groups([1])
    (shard,) = content["sets"][0]["shards"]
    content["sets"][0]["shards"] = [dict(shard) for _ in range(3)]
    content["sets"][0]["shards"][place][field] = value
    with pytest.raises(
        CorpusError, match=rf"\$\.sets\[0\]\.shards\[{place}\].*{field if field != 'extra' else ''}"
    ):
        dump_manifest(content)


def test_a_shard_without_a_field_is_refused():
    content = with_groups([1])
    del content["sets"][0]["shards"][0]["bytes"]
    with pytest.raises(CorpusError, match="'bytes' is a required property"):
        dump_manifest(content)


def test_the_seal_holds_in_any_layout_and_breaks_with_any_edit():
    raw = dump_manifest(with_groups([3, 4]))
    found = parse_manifest(raw, "m")
    for layout in ({"indent": 4}, {"separators": (",", ":")}, {"sort_keys": True}):
        assert parse_manifest(json.dumps(found, **layout).encode(), "m") == found
    for old, new in (
        (b'"rows": 1', b'"rows": 2'),
        (b'"cased": true', b'"cased": false'),
        (b'"sha256": "0', b'"sha256": "1'),
    ):
        edited = raw.replace(old, new, 1)
        assert edited != raw
        with pytest.raises(CorpusError, match="was edited or damaged"):
            parse_manifest(edited, "m")
