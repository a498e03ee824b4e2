"""What one build claims of its output: the config that it is of, side files by their bytes, and the code."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from cluster import storage
from pipeline.commit import stable_hash
from pipeline.config import BuildConfig
from pipeline.stage_contamination import evaluation_files
from schemas.documents import DOCUMENTS_VERSION
from schemas.errors import ConfigError, CorpusError
from schemas.json_text import parse_json
from schemas.manifest import MANIFEST_VERSION
from schemas.shards import SHARDS_VERSION
from schemas.versions import CODE_VERSION

_CLAIM = "work/build.json"
_SIDE_FILES = ("extraction.template_rules", "vocabulary.path", "instances.masking.words")


@dataclass(frozen=True)
class Claim:
    """All that a corpus depends on, read once when its build begins."""

    config_hash: str
    """Hash of ``config`` and of the versions of the formats."""
    code_version: str
    config: dict[str, Any]
    """All fields but the output; files that they name beside the sources stand there with their SHA-256."""

    @staticmethod
    def of(config: BuildConfig) -> "Claim":
        """The claim of a build of ``config``. Raises ConfigError when a file that it names is missing."""
        fields = _fields(config)
        formats = (DOCUMENTS_VERSION, SHARDS_VERSION, MANIFEST_VERSION)
        return Claim(stable_hash(fields, *formats), CODE_VERSION, fields)

    def check(self, output: str) -> None:
        """Raises ConfigError when ``output`` belongs to a build of another config or code version."""
        uri = storage.join(output, _CLAIM)
        try:
            found = Claim(**parse_json(storage.read_bytes(uri)))
        except FileNotFoundError:
            return
        except (ValueError, TypeError) as error:
            raise CorpusError(f"{uri}: not a build's claim: {error}") from error
        if found.config_hash != self.config_hash:
            changed = ", ".join(_differences(found.config, self.config)) or "the versions of the formats"
            raise ConfigError(
                f"{output}: holds a build of another config (differs in {changed}); "
                "choose another output or remove this one"
            )
        if found.code_version != self.code_version:
            raise ConfigError(
                f"{output}: holds a build of bertmill {found.code_version}, this is {self.code_version}; "
                "choose another output, remove this one, or go on with the version that began it"
            )

    def take(self, output: str) -> None:
        """Takes the fixed names of ``output`` for this build. Raises ConfigError when another has them."""
        raw = (json.dumps(vars(self), sort_keys=True, ensure_ascii=False, indent=1) + "\n").encode()
        if not storage.put_if_absent(storage.join(output, _CLAIM), raw):
            self.check(output)

    def check_unchanged(self, config: BuildConfig) -> None:
        """Raises ConfigError when a file that the config names has other bytes than when the build began."""
        changed = ", ".join(_differences(self.config, _fields(config)))
        if changed:
            raise ConfigError(
                f"{config.output}: {changed} changed while the build ran; "
                "remove this output and build it again"
            )


def _fields(config: BuildConfig) -> dict[str, Any]:
    fields: dict[str, Any] = config.model_dump(mode="json", exclude={"output"})
    for name in _SIDE_FILES:
        *sections, last = name.split(".")
        section = fields
        for part in sections:
            section = section[part]
        if section[last] is not None:
            section[last] = {"path": section[last], "sha256": _sha256(name, section[last])}
    if config.dedup.evaluation:
        files = evaluation_files(config.dedup.evaluation)
        fields["dedup"]["evaluation"] = {uri: _sha256("dedup.evaluation", uri) for uri in files}
    return fields


def _sha256(field: str, uri: str) -> str:
    try:
        digest = hashlib.sha256()
        with storage.open_stream(uri) as stream:
            while part := stream.read(1 << 20):
                digest.update(part)
        return digest.hexdigest()
    except FileNotFoundError as error:
        raise ConfigError(f"{field}: {uri}: no such file") from error


def _differences(left: Any, right: Any, name: str = "") -> list[str]:
    if isinstance(left, dict) and isinstance(right, dict):
        keys = sorted(left.keys() | right.keys())
        parts = [_differences(left.get(key), right.get(key), f"{name}.{key}".lstrip(".")) for key in keys]
        return [item for part in parts for item in part]
    return [] if left == right else [name]
