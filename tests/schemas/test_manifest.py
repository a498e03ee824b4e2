"""Wrong fields are named by their place, edits break the seal, and other versions are refused."""

import json
from typing import Any

import jsonschema
import pytest

from schemas.errors import CorpusError
from schemas.manifest import manifest_schema, parse_manifest
from tests.support.manifests import sealed, set_entry
from tests.trainer.synthetic import manifest


def with_groups(groups: list[Any]) -> dict[str, Any]:
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
def test_good_row_groups(groups: list[Any]) -> None:
    found = parse_manifest(sealed(with_groups(groups)), "m")
    assert found.sets[0].shards[0].row_groups == groups


@pytest.mark.parametrize("groups", [[0], [4, -1], [1.5], [True], ["3"], [None], [[3]], {"0": 3}, "3", 3])
def test_bad_row_groups_are_named(groups: list[Any]) -> None:
    with pytest.raises(CorpusError, match=r"\$\.sets\[0\]\.shards\[0\]\.row_groups"):
        sealed(with_groups(groups))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("path", "../shard"), ("path", "/shard"), ("path", 7), ("sha256", "0" * 63), ("sha256", "G" * 64),
        ("sha256", None), ("rows", -1), ("rows", True), ("tokens", 1.5), ("bytes", "1"), ("languages", []),
        ("languages", {"en": -1}), ("languages", {"en": True}), ("row_groups", None), ("extra", 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", [0, 2])
def test_bad_shards_are_named_wherever_they_stand(field: str, value: Any, place: Any) -> None:
    content = with_groups([1])
    (shard,) = content["sets"][0]["shards"]
    content["sets"][0]["shards"] = [dict(shard) for _ in range(3)]
    content["sets"][0]["shards"][place][field] = value
    with pytest.raises(
        CorpusError, match=rf"\$\.sets\[0\]\.shards\[{place}\].*{field if field != 'extra' else ''}"
    ):
        sealed(content)


def test_a_shard_without_a_field_is_refused() -> None:
    content = with_groups([1])
    del content["sets"][0]["shards"][0]["bytes"]
    with pytest.raises(CorpusError, match=r"\$\.sets\[0\]\.shards\[0\]\.bytes: Field required"):
        sealed(content)


def test_the_seal_holds_in_any_layout_and_breaks_with_any_edit() -> None:
    raw = sealed(with_groups([3, 4]))
    found = parse_manifest(raw, "m")
    for layout in ({"indent": 4}, {"separators": (",", ":")}, {"sort_keys": True}):
        assert parse_manifest(json.dumps(json.loads(raw), **layout).encode(), "m") == found
    for old, new in (
        (b'"rows": 1', b'"rows": 2'),
        (b'"cased": true', b'"cased": false'),
        (b'"sha256": "0', b'"sha256": "1'),
    ):
        edited = raw.replace(old, new, 1)
        assert edited != raw
        with pytest.raises(CorpusError, match="was edited or damaged"):
            parse_manifest(edited, "m")


def test_an_older_manifest_is_refused_with_what_to_do() -> None:
    raw = sealed(with_groups([1])).replace(b'"version": 2', b'"version": 1')
    with pytest.raises(
        CorpusError, match=r"^m: format 'bertmill-corpus' version 1; .*build the corpus again"
    ):
        parse_manifest(raw, "m")


def test_a_missing_special_token_is_named() -> None:
    content = with_groups([1])
    content["vocabulary"]["special_ids"] = {"[PAD]": 0}
    with pytest.raises(CorpusError, match=r"\$\.vocabulary\.special_ids: Value error, \[UNK\] is missing"):
        sealed(content)


@pytest.mark.parametrize("raw", [b"{", b"[]", b"\xff", b"[" * 100_000, b'{"config": NaN}'])
def test_invalid_manifests_give_a_one_line_error(raw: Any) -> None:
    with pytest.raises(CorpusError, match=r"^m: [^\n]+$"):
        parse_manifest(raw, "m")


def test_the_schema_follows_from_the_classes() -> None:
    schema = manifest_schema()
    jsonschema.validate(json.loads(sealed(with_groups([1, 2]))), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(with_groups([0]), schema)
    assert schema["$defs"]["Shard"]["properties"]["row_groups"]["description"] == "Rows of each row group."
