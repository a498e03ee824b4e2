"""Builds micro-batches from plain rows in a slow and readable way, and random rows for the tests."""

from dataclasses import dataclass, field

import torch

from trainer.model.microbatch import MicroBatch


@dataclass(frozen=True)
class Row:
    """One instance: ids with masks applied, the length of segment A, original ids by position."""

    ids: list[int]
    segment_a: int
    masked: dict[int, int] = field(default_factory=dict)
    label: int = -1
    lang: int = 0


def pack(rows: list[Row], first_sample: int = 0) -> MicroBatch:
    ids, segments, positions, bounds = list[int](), list[int](), list[int](), [0]
    masked_index, masked_ids = list[int](), list[int]()
    for row in rows:
        masked_index += [bounds[-1] + place for place in sorted(row.masked)]
        masked_ids += [row.masked[place] for place in sorted(row.masked)]
        ids += row.ids
        segments += [int(place >= row.segment_a) for place in range(len(row.ids))]
        positions += range(len(row.ids))
        bounds.append(len(ids))
    return MicroBatch(
        input_ids=torch.tensor(ids, dtype=torch.int64),
        token_type_ids=torch.tensor(segments, dtype=torch.int64),
        position_ids=torch.tensor(positions, dtype=torch.int64),
        cu_seqlens=torch.tensor(bounds, dtype=torch.int32),
        max_seqlen=max(len(row.ids) for row in rows),
        masked_index=torch.tensor(masked_index, dtype=torch.int64),
        masked_ids=torch.tensor(masked_ids, dtype=torch.int64),
        next_sentence_labels=torch.tensor([row.label for row in rows]),
        sample_ids=torch.arange(first_sample, first_sample + len(rows)),
        lang_ids=torch.tensor([row.lang for row in rows]),
    )


def random_rows(
    count: int,
    vocab: int,
    lengths: tuple[int, int] = (5, 32),
    masked: tuple[int, int] = (1, 4),
    seed: int = 0,
) -> list[Row]:
    """Rows with ids in [5, vocab), two segments, a pair label and a number of masks in ``masked``."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    rows = []
    for _ in range(count):
        length = draw(*lengths)
        ids = torch.randint(5, vocab, (length,), generator=generator)
        places = torch.randperm(length, generator=generator)[: min(draw(*masked), length)].tolist()
        originals = {place: int(ids[place]) for place in places}
        ids[places] = 4
        rows.append(Row(ids.tolist(), draw(1, length), originals, draw(0, 1), draw(0, 2)))
    return rows
