"""The order of equally frequent words: by a hash, not by the alphabet, which costs the last scripts most."""

import zlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

# Words that are worked on at a time, for bounded memory.
_WORDS_AT_ONCE = 100_000


def order_by_hash(words: pa.Table) -> npt.NDArray[np.int64]:
    """The order of a column ``word`` by CRC-32, and of words of one CRC-32 by the alphabet."""
    hashes = [np.zeros(0, np.uint32)]
    for batch in words.to_batches(_WORDS_AT_ONCE):
        raw = batch["word"].cast(pa.binary()).to_pylist()
        hashes.append(np.fromiter(map(zlib.crc32, raw), np.uint32, len(raw)))
    ranked = words.append_column("hash", pa.array(np.concatenate(hashes)))
    return np.asarray(pc.sort_indices(ranked, [("hash", "ascending"), ("word", "ascending")]), np.int64)
