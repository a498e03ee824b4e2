"""Tests that a build from URLs with password and signature shows neither in its files, log or plan."""

import functools
import http.server
import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cluster.jobs.config_file import validate
from pipeline.build import dry_run
from pipeline.config import BuildConfig
from pipeline.dedup.evaluation_files import load_evaluation
from pipeline.engine.build_identity import BuildIdentity
from pipeline.sources.plan import plan_units
from pipeline.stages.extract import extract_folder, extract_one
from tests.pipeline import builds

USER, PASSWORD, SIGNATURE, NEW_SIGNATURE = "reader", "pa55word", "f00dfeed", "cafe0042"
WORDS = ["".join(parts) for parts in itertools.product("bdfgklmnprst", "aeiou", "bdglmnrst", ("ing", "er"))]


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves whole files to requests with the password and a signature."""

    def send_head(self) -> Any:
        if "Authorization" not in self.headers or "X-Amz-Signature=" not in self.path:
            self.send_error(403)
            return None
        return super().send_head()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Host and port of a server of the files in ``tmp_path / "web"``."""
    folder = tmp_path / "web"
    folder.mkdir()
    documents = [
        {"id": number, "text": " ".join(_sentence(number, place) for place in range(12))}
        for number in range(40)
    ]
    (folder / "docs.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    (folder / "eval.txt").write_text("too short\n")
    (folder / "rules.yaml").write_text("{}\n")
    handler = functools.partial(_Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


def _sentence(number: int, place: int) -> str:
    words = [WORDS[(number * 7 + place * 3 + step * (1 + number % 5)) % len(WORDS)] for step in range(9)]
    return f"{words[0].capitalize()} {' '.join(words[1:])} {number} {place}."


def _config(server: str, output: Path, signature: str) -> BuildConfig:
    def address(name: str) -> str:
        return f"http://{USER}:{PASSWORD}@{server}/{name}?X-Amz-Credential=a/b/c&X-Amz-Signature={signature}"

    fields = builds.config(
        output,
        sources=[{"name": "web", "kind": "jsonl", "lang": "en", "paths": [address("docs.jsonl")]}],
        extraction={"min_chars": 10, "template_rules": address("rules.yaml")},
        vocabulary={"size": 300, "min_count": 1},
        dedup={"evaluation": [address("eval.txt")], "near": False},
        instances={"bucket_bytes": 65536, "validation_share": 0, "passes": 1},
    )
    return validate(BuildConfig, fields, "test")


def test_stages_write_no_secret_and_a_new_signature_is_the_same_build(
    server: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output = tmp_path / "corpus"
    config = _config(server, output, SIGNATURE)
    units = plan_units(config)
    folder = extract_folder(config, str(output / "work"), units)
    parts = [output / "work" / folder.path(extract_one(unit, config, folder).files[0].path) for unit in units]
    identity = BuildIdentity.of(config)
    identity.claim_output(str(output))
    load_evaluation(config.dedup.evaluation)

    keys = [key for part in parts for key in pq.read_table(part, columns=["key"])["key"].to_pylist()]
    assert sorted(keys) == sorted(f"web/en/docs.jsonl:{number}/0" for number in range(40))
    again = _config(server, output, NEW_SIGNATURE)
    assert [unit.unit_id for unit in plan_units(again)] == [unit.unit_id for unit in units]
    assert extract_folder(again, str(output / "work"), units) == folder
    BuildIdentity.of(again).check_output(str(output))

    files = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    shown = [dry_run(config), caplog.text, json.dumps(identity.config), *map(str, files)]
    assert "has no text of" in caplog.text
    for secret in (USER, PASSWORD, SIGNATURE, "X-Amz"):
        assert [path for path, data in files.items() if secret.encode() in data] == []
        assert not any(secret in text for text in shown)
    assert f"http://{server}/docs.jsonl".encode() in files[output / "work" / "build.json"]
