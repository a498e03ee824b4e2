"""Errors name the path of a wrong field, edits break the seal, and other versions are refused."""

import json
from typing import Any

import jsonschema
import pytest

from schemas.errors import CorpusError
from schemas.manifest import manifest_schema, parse_manifest, validate_manifest
from tests.support.manifests import sealed, set_entry, with_tables
from tests.trainer.synthetic import manifest

SHARD: dict[str, Any] = {
    "path": "train-32-0/shard-00000.parquet",
    "rows": 7,
    "tokens": 1,
    "bytes": 1,
    "sha256": "0" * 64,
    "languages": {"de": 7},
}


def with_set(**fields: Any) -> dict[str, Any]:
    """A manifest of one set of one shard."""
    content, _ = with_tables(manifest([set_entry("train-32-0", 32, 0, [SHARD])], 200, "nsp"))
    content["sets"][0] |= fields
    return content


def with_table(**fields: Any) -> dict[str, Any]:
    """A manifest whose set has these fields in the entry of its shard table."""
    content = with_set()
    content["sets"][0]["shards"] |= fields
    return content


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("path", "../shard"), ("path", "/shard"), ("path", 7), ("sha256", "0" * 63), ("sha256", "G" * 64),
        ("sha256", None), ("count", -1), ("count", True), ("prefix", "/data/"), ("prefix", "../data/"),
        ("row_group_rows", 0), ("row_group_rows", 1.5), ("row_group_rows", None), ("extra", 1),
    ],
)  # fmt: skip
def test_bad_fields_of_a_shard_table_are_named(field: str, value: Any) -> None:
    with pytest.raises(CorpusError, match=rf"\$\.sets\[0\]\.shards\.{field}: "):
        sealed(with_table(**{field: value}))


@pytest.mark.parametrize("languages", [[], {"en": -1}, {"en": True}, {"en": 1.5}, None])
def test_bad_rows_by_language_are_named(languages: Any) -> None:
    with pytest.raises(CorpusError, match=r"\$\.sets\[0\]\.languages"):
        sealed(with_set(languages=languages))


def test_a_list_of_shards_is_refused() -> None:
    raw = json.dumps(with_set(shards=[SHARD])).encode()
    with pytest.raises(CorpusError, match=r"\$\.sets\[0\]\.shards: Input should be an object"):
        validate_manifest(raw, "m")


def test_a_set_without_a_field_is_refused() -> None:
    content = with_set()
    del content["sets"][0]["bytes"]
    with pytest.raises(CorpusError, match=r"\$\.sets\[0\]\.bytes: Field required"):
        sealed(content)


def test_the_seal_holds_in_any_layout_and_breaks_with_any_edit() -> None:
    raw = sealed(with_set())
    found = parse_manifest(raw, "m")
    for layout in ({"indent": 4}, {"separators": (",", ":")}, {"sort_keys": True}):
        assert parse_manifest(json.dumps(json.loads(raw), **layout).encode(), "m") == found
    for old, new in (
        (b'"rows": 7', b'"rows": 8'),
        (b'"cased": true', b'"cased": false'),
        (b'"prefix": "t', b'"prefix": "u'),
    ):
        edited = raw.replace(old, new, 1)
        assert edited != raw
        with pytest.raises(CorpusError, match="was edited or damaged"):
            parse_manifest(edited, "m")


def test_an_older_manifest_is_refused_with_what_to_do() -> None:
    raw = sealed(with_set()).replace(b'"version": 3', b'"version": 2')
    with pytest.raises(
        CorpusError, match=r"^m: format 'bertmill-corpus' version 2; [^\n]*build the corpus again[^\n]*$"
    ):
        parse_manifest(raw, "m")


def test_a_missing_special_token_is_named() -> None:
    content = with_set()
    content["vocabulary"]["special_ids"] = {"[PAD]": 0}
    with pytest.raises(CorpusError, match=r"\$\.vocabulary\.special_ids: \[UNK\] is missing"):
        sealed(content)


@pytest.mark.parametrize("raw", [b"{", b"[]", b"\xff", b"[" * 100_000, b'{"config": NaN}'])
def test_invalid_manifests_give_a_one_line_error(raw: Any) -> None:
    with pytest.raises(CorpusError, match=r"^m: [^\n]+$"):
        parse_manifest(raw, "m")


def test_the_schema_follows_from_the_classes() -> None:
    schema = manifest_schema()
    jsonschema.validate(json.loads(sealed(with_set())), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(with_table(row_group_rows=0), schema)
    assert schema["$defs"]["ShardTableFile"]["properties"]["count"]["description"] == "Shards of the set."
