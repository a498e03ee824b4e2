"""Compares the count of operations with published figures and with torch's count."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.trainer.synthetic import write_corpus
from trainer.data.batches import BatchReader, Stream
from trainer.data.corpus import open_corpus
from trainer.data.rows import ShardRows
from trainer.data.step_plan import TrainingPlan
from trainer.model.config import ModelConfig
from trainer.model.pretraining import BertPretraining
from trainer.monitoring.flops import peak_flops, training_flops
from trainer.recipe_config import Phase


@pytest.mark.parametrize(("size", "length", "published"), [("base", 128, 6.99e10), ("large", 512, 1.02e12)])
def test_a_row_of_bert(size: Any, length: int, published: float) -> None:
    """F = 3 (2 * 12 h^2 L s + 4 h s^2 L + 2 P (h^2 + h V) + 2 h^2) with P = 0.15 s and V = 30,522."""
    model = ModelConfig(size=size, vocab_size=30_522)
    assert training_flops(model, length, length**2, 0.15 * length) == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize("style", ["bert", "albert", "modern"])
def test_torch_counts_the_same(tmp_path: Path, style: Any) -> None:
    corpus = open_corpus(str(write_corpus(tmp_path, full=True, objective="none", vocab_size=512)))
    order = corpus.order(32, 1)
    phase = Phase(max_seq_length=32, global_batch=16, micro_batch_tokens=512, steps=1, learning_rate=1e-3)
    reader = BatchReader(
        TrainingPlan([phase], {32: order}),
        {32: Stream(order, ShardRows(corpus.passes(32), corpus.limits(32)))},
        0,
        1,
    )
    with reader:
        (batch,) = reader.read(0).micro_batches
    shape: dict[str, Any] = {
        "size": "custom",
        "layers": 2,
        "hidden_size": 128,
        "heads": 2,
        "vocab_size": 512,
        "local_window": 0,
    }
    factorised = 64 if style == "albert" else 128
    config = ModelConfig(style=style, pair_objective="none", embedding_size=factorised, **shape)
    model = BertPretraining(config)
    with FlopCounterMode(display=False) as counter:
        output = model(batch)
        output.padded_token_logits.sum().backward()
    ours = training_flops(config, batch.tokens, 16 * 32**2, batch.masked_ids.shape[0])
    # The first layer's input needs no gradient only if nothing before it is trained, so the counts agree.
    assert counter.get_total_flops() == pytest.approx(ours, rel=0.06)


def test_the_last_layer_of_a_token_that_no_head_reads_needs_only_its_key_and_value() -> None:
    model = ModelConfig(size="base", layers=1, vocab_size=1000)
    tokens, used, length = 1280, 205, 128
    every = training_flops(model, tokens, tokens * length, 192)
    # Queries, output, feed-forward, logits and sums of values of the others, forward and backward.
    unused = 6 * (tokens - used) * (2 * 768**2 + 2 * 768 * 3072 + 2 * 768 * length)
    assert training_flops(model, tokens, tokens * length, 192, used) == pytest.approx(every - unused)
    assert training_flops(model, tokens, tokens * length, 192, tokens) == every


def test_local_attention_costs_less() -> None:
    wide = ModelConfig(style="modern", vocab_size=1000, local_window=0)
    local = ModelConfig(style="modern", vocab_size=1000, local_window=128)
    assert training_flops(local, 8192, 8192**2, 0) < 0.7 * training_flops(wide, 8192, 8192**2, 0)
    assert training_flops(local, 64, 64**2, 0) == training_flops(wide, 64, 64**2, 0)


def test_a_cpu_has_no_known_peak() -> None:
    assert peak_flops(torch.device("cpu"), torch.bfloat16) is None
