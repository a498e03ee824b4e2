"""Tests custom source readers, filters and template rules, which are part of a build's identity."""

import gzip
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.jobs.config_file import validate
from pipeline.build import build, dry_run, preflight
from pipeline.config import BuildConfig
from pipeline.documents.extraction import extract_unit
from pipeline.documents.funnel import Funnel
from pipeline.engine.build_identity import BuildIdentity
from pipeline.sources.plan import plan_units
from pipeline.stages.extract import extract_folder
from pipeline.verify.corpus import verify_corpus
from schemas.errors import BertmillError, ConfigError, PluginError
from schemas.manifest import Manifest, parse_manifest
from tests.pipeline import builds
from tests.pipeline.sources.dumps import FOOT, HEAD, page
from tests.support.ray_cluster import RayCluster

CODE = '''
import gzip
import json

from pipeline.config import Extraction, Source
from pipeline.sources.documents import RawDocument, Skip
from pipeline.sources.files import FileReader
from pipeline.sources.units import Unit


class Letters:
    """Reads gzipped JSON lists of letters."""

    def __init__(self, extraction: Extraction) -> None:
        self.extraction = extraction

    def plan(self, source: Source) -> list[Unit]:
        return [Unit.of_file(source, uri, options=source.options.get("sender", "")) for uri in source.paths]

    def read(self, unit: Unit):
        for number, letter in enumerate(json.loads(gzip.open(unit.uri).read())):
            if letter is None:
                yield Skip(str(number), "", "en", "lost-letter")
            else:
                text = letter + " Yours, " + unit.options + "."
                yield RawDocument(f"{unit.name}:{number}", 0, "A letter", "en", text, "plain")


class Glob(FileReader):
    """A document for each file, by the base class."""

    def plan_file(self, source, file):
        return [Unit.of_file(source, file.uri, name=file.name)]

    def read(self, unit):
        yield RawDocument(unit.name, 0, unit.name, "en", open(unit.uri).read(), "plain")


class MaxDigits:
    def __init__(self, share: float = 0.2) -> None:
        self.share = share

    def filter(self, document):
        digits = sum(map(str.isdigit, document.text))
        return digits <= self.share * len(document.text), "too-many-digits"


class NoSpam:
    def filter(self, document) -> bool:
        return "spam" not in document.text


class Broken:
    def filter(self, document):
        return 1 / 0


class Odd:
    def filter(self, document):
        return "yes"


class NoPlan(Letters):
    def plan(self, source):
        pass


class NoRead(Letters):
    def read(self, unit):
        pass


RULES = {"stress": lambda arguments: arguments.get("1") + "!", "hush*": lambda arguments: ""}
BAD_RULES = {"stress": lambda arguments: 5}
NO_RULES = {"stress": 5}
NOT_A_READER = type("Empty", (), {"__init__": lambda self, extraction: None})
'''


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A module with plug-ins that only this process can import. Its name is new for each test."""
    name = f"plugins_{abs(hash(request.node.nodeid))}"
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def config_of(tmp_path: Path, source: dict[str, Any], **fields: Any) -> BuildConfig:
    return validate(BuildConfig, builds.config(tmp_path / "corpus", sources=[source], **fields), "test")


def extracted(config: BuildConfig) -> tuple[list[dict[str, Any]], Funnel]:
    funnel = Funnel()
    batches = [batch for unit in plan_units(config) for batch in extract_unit(unit, config, funnel)]
    return [row for batch in batches for row in batch.to_pylist()], funnel


def letters(tmp_path: Path, plugins: str) -> dict[str, Any]:
    body = (
        "The harvest was good this year and the barn is full. We will write again when the snow has melted. "
    )
    texts: list[str | None] = [f"Letter {number}. {body * 3}" for number in range(40)]
    # Enough words for a vocabulary.
    texts[0] = f"{texts[0]}" + " ".join(
        map("".join, itertools.product("bdfgklmnprst", "aeiou", "bdglmnrst", ("ing", "er")))
    )
    texts += ["12345 67890 " * 30, f"spam {body * 2}", None]
    (tmp_path / "letters.gz").write_bytes(gzip.compress(json.dumps(texts).encode()))
    return {
        "name": "letters",
        "kind": f"{plugins}:Letters",
        "paths": [str(tmp_path / "letters.gz")],
        "options": {"sender": "Ann"},
    }


@pytest.mark.ray
def test_a_build_with_a_reader_and_filters(ray_session: RayCluster, tmp_path: Path, plugins: str) -> None:
    """The session's Ray was started without the module's folder, so workers get the path from the driver."""
    filters = [{"use": f"{plugins}:MaxDigits", "options": {"share": 0.3}}, f"{plugins}:NoSpam"]
    config = config_of(
        tmp_path,
        letters(tmp_path, plugins),
        extraction={"filters": filters},
        vocabulary={"size": 300, "unused": 9},
        instances={"validation_share": 0.1},
    )
    text = build(config)
    manifest = parse_manifest((tmp_path / "corpus" / "manifest.json").read_bytes(), "m")
    skipped = {"lost-letter": 1, "too-many-digits": 1, "NoSpam": 1}
    assert manifest.counts.pages.skipped == skipped
    assert manifest.languages["en"].skipped == skipped
    assert (manifest.counts.pages.pages_seen, manifest.counts.documents) == (43, 40)
    assert "too-many-digits" in text
    assert "too-many-digits" in (tmp_path / "corpus" / "report.html").read_text()
    names = {f"{plugins}:{name}" for name in ("Letters", "MaxDigits", "NoSpam")}
    assert manifest.plugins.keys() == names
    assert verify_corpus(str(tmp_path / "corpus")).sound
    check_that_new_code_is_another_build(tmp_path, config, manifest, plugins)


def check_that_new_code_is_another_build(
    tmp_path: Path, config: BuildConfig, manifest: Manifest, plugins: str
) -> None:
    before = extract_folder(config, "work", plan_units(config)).uri
    module = tmp_path / f"{plugins}.py"
    module.write_text(CODE + "\n# a change\n")
    assert extract_folder(config, "work", plan_units(config)).uri != before
    assert BuildIdentity.of(config).plugins != manifest.plugins
    with pytest.raises(ConfigError, match=rf"another config \(differs in plugins\.{plugins}:Letters"):
        build(config)
    module.write_text(CODE)
    build(config)


def test_a_reader_on_the_base_class_expands_globs(tmp_path: Path, plugins: str) -> None:
    for name in ("b", "a", "_note"):
        (tmp_path / f"{name}.txt").write_text(f"The text of {name}. " * 20)
    source = {"name": "s", "kind": f"{plugins}:Glob", "paths": [str(tmp_path / "*.txt")]}
    rows, _ = extracted(config_of(tmp_path, source))
    assert [row["key"] for row in rows] == ["s/en/a.txt/0", "s/en/b.txt/0"]


def test_python_rules_come_before_the_yaml_rules(tmp_path: Path, plugins: str) -> None:
    body = "The {{stress|word}} is long. {{hush hush|never}}And {{lang|fr|mot}} is as it was. " * 4
    (tmp_path / "enwiki.xml").write_text(HEAD + page(1, body) + FOOT)
    source = {"name": "w", "kind": "wikimedia", "lang": "en", "paths": [str(tmp_path / "enwiki.xml")]}
    functions = {"template_functions": f"{plugins}:RULES"}
    (row,), _ = extracted(config_of(tmp_path, source, extraction=functions))
    text = " ".join(row["sentences"])
    assert text.startswith("The word! is long. And mot is as it was.")


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"filters": ["{}:Broken"]}, PluginError,
         r"{}:Broken: document s/en/x\.txt: ZeroDivisionError: division by zero \(.*{}\.py:\d+\)"),
        ({"filters": ["{}:Odd"]}, PluginError, r"{}:Odd: .*returned 'yes', not a bool or \(bool, reason\)"),
        ({"filters": [{"use": "{}:MaxDigits", "options": {"most": 1}}]}, ConfigError,
         r"extraction\.filters\.0: {}:MaxDigits: TypeError: .*'most'"),
        ({"filters": ["{}:RULES"]}, ConfigError, r"extraction\.filters\.0\.use: {}:RULES is not callable"),
        ({"filters": ["{}:Letters"]}, ConfigError, r"extraction\.filters\.0: {}:Letters: TypeError"),
        ({"filters": ["{}:Absent"]}, ConfigError, r"extraction\.filters\.0\.use: module '{}' .* no 'Absent'"),
        ({"filters": ["nowhere:X"]}, ConfigError, r"extraction\.filters\.0\.use: no module named 'nowhere'"),
    ],
)  # fmt: skip
def test_faults_of_filters_are_one_line(
    tmp_path: Path, plugins: str, fields: Any, error: type[BertmillError], message: str
) -> None:
    (tmp_path / "x.txt").write_text("A text about nothing. " * 20)
    source = {"name": "s", "kind": "text", "lang": "en", "paths": [str(tmp_path / "x.txt")]}
    fields = json.loads(json.dumps(fields).replace("{}", plugins))
    with pytest.raises(error, match=rf"^{message.replace('{}', plugins)}[^\n]*$"):
        extracted(config_of(tmp_path, source, extraction=fields))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("{}:NOT_A_READER", "sources: kind: {}:NOT_A_READER: has no method plan"),
        ("{}:MaxDigits", "{}:MaxDigits: source s: AttributeError|has no method plan"),
        ("{}:Absent", r"^sources\.0\.kind: module '{}' .* has no 'Absent'"),
        ("{}:NoPlan", "{}:NoPlan: source s: plan gave None, not Units"),
    ],
)
def test_faults_of_readers_are_one_line(tmp_path: Path, plugins: str, kind: str, message: str) -> None:
    source = {"name": "s", "kind": kind.format(plugins), "paths": ["x"]}
    with pytest.raises(BertmillError, match=message.replace("{}", plugins)):
        dry_run(config_of(tmp_path, source))


def test_a_reader_without_documents_is_one_line(tmp_path: Path, plugins: str) -> None:
    source = letters(tmp_path, plugins) | {"kind": f"{plugins}:NoRead"}
    with pytest.raises(PluginError, match=rf"{plugins}:NoRead: .*letters\.gz: read gave None, not documents"):
        extracted(config_of(tmp_path, source))


@pytest.mark.parametrize("check", [dry_run, preflight])
@pytest.mark.parametrize(
    ("extraction", "message"),
    [
        ({"filters": [{"use": "{}:MaxDigits", "options": {"most": 1}}]}, r"extraction\.filters\.0: .*'most'"),
        ({"template_functions": "{}:NO_RULES"}, "'stress' must be a template name with a function"),
    ],
)
def test_filters_and_rules_are_created_before_the_build(
    tmp_path: Path, plugins: str, check: Callable[[BuildConfig], object], extraction: Any, message: str
) -> None:
    """Workers use them only after hours of templates."""
    extraction = json.loads(json.dumps(extraction).replace("{}", plugins))
    with pytest.raises(ConfigError, match=message):
        check(config_of(tmp_path, letters(tmp_path, plugins), extraction=extraction))


def test_faults_of_template_rules_are_one_line(tmp_path: Path, plugins: str) -> None:
    (tmp_path / "enwiki.xml").write_text(HEAD + page(1, "The {{stress|word}} is long. " * 9) + FOOT)
    source = {"name": "w", "kind": "wikimedia", "lang": "en", "paths": [str(tmp_path / "enwiki.xml")]}
    for name, message in (
        ("BAD_RULES", "template stress: returned 5, not a text or None"),
        ("NO_RULES", "'stress' must be a template name with a function"),
        ("MaxDigits", "is not a Mapping"),
    ):
        config = config_of(tmp_path, source, extraction={"template_functions": f"{plugins}:{name}"})
        with pytest.raises(BertmillError, match=message):
            extracted(config)


def test_names_are_checked_with_the_config(tmp_path: Path) -> None:
    source = {"name": "s", "kind": "wikimedai", "paths": ["x"]}
    with pytest.raises(ConfigError, match=r"sources\.0\.kind: .*'wikimedai' must be one of wikimedia, "):
        config_of(tmp_path, source)
    with pytest.raises(ConfigError, match=r"filters\.0\.use: .*'x' must have the form package\.module:Name"):
        config_of(tmp_path, {**source, "kind": "text"}, extraction={"filters": ["x"]})
    with pytest.raises(ConfigError, match=r"options are for custom reader classes"):
        config_of(tmp_path, {**source, "kind": "text", "options": {"a": 1}})
