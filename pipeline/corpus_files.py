"""A finished corpus as verify and inspect read it: by its manifest, from any storage."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cluster import storage
from pipeline.row_checks import RowRules
from pipeline.word_lists import load_word_list
from schemas.errors import CorpusError
from schemas.manifest import MANIFEST_NAME, parse_manifest
from schemas.masking import MaskingRule, MaskingVocabulary, Segmenter


@dataclass(frozen=True)
class CorpusFiles:
    """A manifest and the folder that its paths are below."""

    folder: str
    manifest_uri: str
    manifest: dict[str, Any]

    @classmethod
    def open(cls, uri: str) -> "CorpusFiles":
        """From the corpus folder or its manifest. Raises CorpusError when there is no valid manifest."""
        manifest_uri = uri if uri.endswith(".json") else storage.join(uri, MANIFEST_NAME)
        try:
            raw = storage.read_bytes(manifest_uri)
        except FileNotFoundError as error:
            raise CorpusError(f"{manifest_uri}: no such manifest; is the build finished?") from error
        folder = manifest_uri.rpartition("/")[0] or "."
        return cls(folder, manifest_uri, parse_manifest(raw, manifest_uri))

    def uri(self, path: str) -> str:
        """The URI of a path that the manifest names."""
        return storage.join(self.folder, path)

    @cached_property
    def _vocabulary_bytes(self) -> bytes:
        uri = self.uri(self.manifest["vocabulary"]["path"])
        try:
            return storage.read_bytes(uri)
        except FileNotFoundError as error:
            raise CorpusError(f"{uri}: the vocabulary is missing") from error

    @property
    def vocabulary_sha256(self) -> str:
        """Of the vocabulary file as it is."""
        return hashlib.sha256(self._vocabulary_bytes).hexdigest()

    @cached_property
    def pieces(self) -> list[str]:
        """The vocabulary in the order of the ids."""
        return self._vocabulary_bytes.decode("utf-8", "replace").removesuffix("\n").split("\n")

    @cached_property
    def masking_vocabulary(self) -> MaskingVocabulary:
        """What the masking rule knows of the pieces."""
        return MaskingVocabulary.from_pieces(
            self.pieces, self.manifest["masking"].get("predict_unknown", False)
        )

    @cached_property
    def segmenter(self) -> Segmenter | None:
        """Word boundaries by the corpus' word list. Raises CorpusError when it is not the right one."""
        words = self.manifest["masking"].get("words")
        return None if words is None else load_word_list(self.folder, words["sha256"], tuple(self.pieces))

    def row_rules(self, entry: dict[str, Any]) -> RowRules:
        """What the rows of the set ``entry`` must keep to."""
        masking = self.manifest["masking"]
        return RowRules(
            objective=self.manifest["objective"],
            max_seq_length=entry["max_seq_length"],
            masking=MaskingRule(
                unit=masking["unit"],
                probability=masking["probability"],
                max_predictions=entry["max_predictions"],
                mask_share=masking["mask_share"],
                random_share=masking["random_share"],
            ),
            vocabulary=self.masking_vocabulary,
            special=self.manifest["vocabulary"]["special_ids"],
            segmenter=self.segmenter,
            languages=frozenset(self.manifest["languages"]),
        )
