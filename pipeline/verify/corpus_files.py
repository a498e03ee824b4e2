"""Opens a finished corpus from any storage for verify and inspect, by its manifest."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

from cluster import storage
from pipeline.instances.word_lists import load_word_list
from pipeline.verify.row_checks import RowRules
from schemas.errors import CorpusError
from schemas.manifest import MANIFEST_NAME, Manifest, SequenceSet, parse_manifest
from schemas.masking.targets import MaskingRule, MaskingVocabulary, Segmenter
from schemas.shard_tables import ShardTable, parse_shard_table


@dataclass(frozen=True)
class CorpusFiles:
    """A manifest and the folder that its paths are relative to."""

    folder: str
    manifest_uri: str
    manifest: Manifest

    @classmethod
    def open(cls, uri: str) -> "CorpusFiles":
        """From the corpus folder or its manifest. Raises CorpusError without a valid manifest."""
        manifest_uri = uri if uri.endswith(".json") else storage.join(uri, MANIFEST_NAME)
        try:
            raw = storage.read_bytes(manifest_uri)
        except FileNotFoundError as error:
            raise CorpusError(f"{manifest_uri}: no such manifest; is the build finished?") from error
        folder = manifest_uri.rpartition("/")[0] or "."
        return cls(folder, manifest_uri, parse_manifest(raw, manifest_uri))

    def uri(self, path: str) -> str:
        """The URI of a path in the manifest."""
        return storage.join(self.folder, path)

    def shards(self, entry: SequenceSet) -> ShardTable:
        """The shards of a set. Raises CorpusError if its table is missing or wrong."""
        uri = self.uri(entry.shards.path)
        try:
            raw = storage.read_bytes(uri)
        except FileNotFoundError as error:
            raise CorpusError(f"{uri}: is missing") from error
        return parse_shard_table(raw, entry, uri)

    @cached_property
    def _vocabulary_bytes(self) -> bytes:
        uri = self.uri(self.manifest.vocabulary.path)
        try:
            return storage.read_bytes(uri)
        except FileNotFoundError as error:
            raise CorpusError(f"{uri}: the vocabulary is missing") from error

    @property
    def vocabulary_sha256(self) -> str:
        """SHA-256 of the existing vocabulary file."""
        return hashlib.sha256(self._vocabulary_bytes).hexdigest()

    @cached_property
    def subwords(self) -> list[str]:
        """The vocabulary in the order of the ids."""
        return self._vocabulary_bytes.decode("utf-8", "replace").removesuffix("\n").split("\n")

    @cached_property
    def masking_vocabulary(self) -> MaskingVocabulary:
        """The properties of the subwords that the masking rule needs."""
        return MaskingVocabulary.from_pieces(self.subwords, self.manifest.masking.predict_unknown)

    @cached_property
    def segmenter(self) -> Segmenter | None:
        """Word boundaries from the corpus's word list. Raises CorpusError if it is the wrong list."""
        word_list = self.manifest.masking.word_list
        if word_list is None:
            return None
        return load_word_list(self.folder, word_list.sha256, tuple(self.subwords))

    def row_rules(self, entry: SequenceSet) -> RowRules:
        """The rules for the rows of a set."""
        masking = self.manifest.masking
        return RowRules(
            objective=self.manifest.objective,
            max_seq_length=entry.max_seq_length,
            masking=MaskingRule(
                unit=masking.unit,
                probability=masking.probability,
                max_predictions=entry.max_predictions,
                mask_share=masking.mask_share,
                random_share=masking.random_share,
            ),
            vocabulary=self.masking_vocabulary,
            special=self.manifest.vocabulary.special_ids,
            segmenter=self.segmenter,
            languages=frozenset(self.manifest.languages),
        )
