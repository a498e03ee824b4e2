"""Identifies what a corpus depends on: the config, the bytes of the files that it names, and the code.

The first build that writes to an output claims it. No other build may write there.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, cast

from pydantic import TypeAdapter, ValidationError

from cluster import storage
from pipeline.config import NOT_OF_THE_CORPUS, BuildConfig
from pipeline.dedup.evaluation_files import evaluation_files
from pipeline.engine.commit import stable_hash
from pipeline.plugins import plugin_versions
from schemas.columns.documents import DOCUMENTS_VERSION
from schemas.columns.shards import SHARDS_VERSION
from schemas.errors import ConfigError, CorpusError, reason_of
from schemas.manifest import MANIFEST_VERSION
from schemas.redaction import public_fields, public_uri
from schemas.versions import CODE_VERSION

_FILE = "work/build.json"
_SIDE_FILES = ("extraction.template_rules", "vocabulary.path", "instances.masking.words")


@dataclass(frozen=True)
class BuildIdentity:
    """Everything that a corpus depends on, read once when its build starts."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True}

    config_hash: str
    """Hash of ``config`` and of the versions of the formats."""
    code_version: str
    config: dict[str, Any]
    """All fields except NOT_OF_THE_CORPUS, without credentials in URIs. Includes the SHA-256 of files that
    fields name, other than sources. ``plugins`` has the SHA-256 of each plug-in's source."""

    @property
    def plugins(self) -> dict[str, str]:
        """Plug-in -> SHA-256 of its source."""
        return dict(self.config["plugins"])

    @staticmethod
    def of(config: BuildConfig) -> "BuildIdentity":
        """The identity of a build of ``config``. Raises ConfigError when a file that it names is missing."""
        fields = _fields(config)
        formats = (DOCUMENTS_VERSION, SHARDS_VERSION, MANIFEST_VERSION)
        return BuildIdentity(stable_hash(fields, *formats), CODE_VERSION, fields)

    def check_output(self, output: str) -> None:
        """Raises ConfigError when ``output`` belongs to a build of another config or code version."""
        uri = storage.join(output, _FILE)
        try:
            owner = TypeAdapter(BuildIdentity).validate_json(storage.read_bytes(uri))
        except FileNotFoundError:
            return
        except ValidationError as error:
            problem = reason_of(error.errors(include_url=False)[0])
            raise CorpusError(f"{uri}: not the identity of a build: {problem}") from error
        if owner.config_hash != self.config_hash:
            changed = ", ".join(differences(owner.config, self.config)) or "the versions of the formats"
            raise ConfigError(
                f"{output}: holds a build of another config (differs in {changed}); "
                "choose another output or remove this one"
            )
        if owner.code_version != self.code_version:
            raise ConfigError(
                f"{output}: holds a build of bertmill {owner.code_version}, this is {self.code_version}; "
                f"choose another output, remove this one, or continue with bertmill {owner.code_version}"
            )

    def claim_output(self, output: str) -> None:
        """Claims ``output`` for this build. Raises ConfigError when another build has claimed it."""
        raw = (json.dumps(asdict(self), sort_keys=True, ensure_ascii=False, indent=1) + "\n").encode()
        if not storage.put_if_absent(storage.join(output, _FILE), raw):
            self.check_output(output)

    def check_unchanged(self, config: BuildConfig) -> None:
        """Raises ConfigError when a file that the config names has changed since the build started."""
        changed = ", ".join(differences(self.config, _fields(config)))
        if changed:
            raise ConfigError(
                f"{config.output}: {changed} changed while the build ran; "
                "remove this output and build it again"
            )


def _fields(config: BuildConfig) -> dict[str, Any]:
    fields: dict[str, Any] = config.model_dump(mode="json", exclude=NOT_OF_THE_CORPUS)
    for name in _SIDE_FILES:
        *sections, last = name.split(".")
        section = fields
        for part in sections:
            section = section[part]
        if section[last] is not None:
            section[last] = {"path": section[last], "sha256": _sha256(name, section[last])}
    if config.dedup.evaluation:
        digests: dict[str, str] = {}
        for uri in evaluation_files(config.dedup.evaluation):
            # Addresses that differ only in their query share an entry.
            before = digests.get(public_uri(uri), "")
            digests[public_uri(uri)] = f"{before} {_sha256('dedup.evaluation', uri)}".lstrip()
        fields["dedup"]["evaluation"] = digests
    fields["plugins"] = plugin_versions(config)
    return cast("dict[str, Any]", public_fields(fields))


def _sha256(field: str, uri: str) -> str:
    try:
        digest = hashlib.sha256()
        with storage.open_stream(uri) as stream:
            while part := stream.read(1 << 20):
                digest.update(part)
        return digest.hexdigest()
    except FileNotFoundError as error:
        raise ConfigError(f"{field}: {uri}: no such file") from error


def differences(left: Any, right: Any, name: str = "") -> list[str]:
    """Names of the fields in which two mappings differ.

    >>> differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}})
    ['a.c']
    """
    if isinstance(left, dict) and isinstance(right, dict):
        keys = sorted(left.keys() | right.keys())
        parts = [differences(left.get(key), right.get(key), f"{name}.{key}".lstrip(".")) for key in keys]
        return [field for part in parts for field in part]
    return [] if left == right else [name]
