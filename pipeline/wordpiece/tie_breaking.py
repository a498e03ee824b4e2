"""Orders equally frequent words by a hash, because alphabetical order would drop the last scripts first."""

import zlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

# Words per batch, for bounded memory.
_WORDS_AT_ONCE = 100_000


def order_by_hash(words: pa.Table) -> npt.NDArray[np.int64]:
    """The order of the column ``word`` by CRC-32, and alphabetically for equal CRC-32."""
    hashes = [np.zeros(0, np.uint32)]
    for batch in words.to_batches(_WORDS_AT_ONCE):
        raw = batch["word"].cast(pa.binary()).to_pylist()
        hashes.append(np.fromiter(map(zlib.crc32, raw), np.uint32, len(raw)))
    ranked = words.append_column("hash", pa.array(np.concatenate(hashes)))
    return np.asarray(pc.sort_indices(ranked, [("hash", "ascending"), ("word", "ascending")]), np.int64)
