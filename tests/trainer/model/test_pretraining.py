"""Compares the packed path with the padded one, and checks that fillers do not leak or count."""

import dataclasses
import math
from typing import Any

import pytest
import torch

from schemas.errors import ConfigError
from tests.trainer.models import STYLES, VOCAB, small_config, small_model
from tests.trainer.packing import Row, pack, random_rows
from trainer.model.attention import (
    Kernel,
    PaddedLayout,
    VarlenLayout,
    choose_kernel,
    fused_obstacle,
    window_of,
)
from trainer.model.config import ModelConfig
from trainer.model.objectives import PretrainingLoss, batch_totals
from trainer.model.pretraining import BertPretraining, parameter_count

CPU = torch.device("cpu")
ROWS = random_rows(9, VOCAB, lengths=(1, 32), masked=(0, 5))


def padded(rows: list[Row], width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    ids = torch.full((len(rows), width), 99)
    segments = torch.ones(len(rows), width, dtype=torch.int64)
    mask = torch.zeros(len(rows), width, dtype=torch.int64)
    for number, row in enumerate(rows):
        length = len(row.ids)
        ids[number, :length] = torch.tensor(row.ids)
        segments[number, :length] = (torch.arange(length) >= row.segment_a).long()
        mask[number, :length] = 1
    return ids, segments, mask


@pytest.mark.parametrize("style", STYLES)
def test_packed_equals_padded(style: str) -> None:
    model = small_model(style)
    packed = model.encode(pack(ROWS))
    ids, segments, mask = padded(ROWS, width=37)
    if not model.config.segments:
        segments = torch.zeros_like(segments)
    rows = model.encode_padded(ids, segments, mask)
    torch.testing.assert_close(packed, rows[mask.bool()], rtol=0, atol=1e-5)


@pytest.mark.parametrize("style", ["bert", "modern"])
def test_an_encoder_returns_the_hidden_states_that_were_asked_for(style: str) -> None:
    model, batch = small_model(style), pack(ROWS)
    every = model.encode(batch)
    rows = torch.tensor([5, 0, 0, batch.tokens - 1])
    inputs = (batch.input_ids, batch.token_type_ids, batch.position_ids, model.layout(batch))
    assert model.encoder(*inputs, rows).equal(every[rows])
    masked, first = model.encode_used(batch)
    assert masked.equal(every[batch.masked_index])
    assert (first is None) == (style == "modern")
    if first is not None:
        assert first.equal(every[batch.cu_seqlens[:-1].long()])


@pytest.mark.parametrize("style", STYLES)
def test_instances_do_not_see_each_other(style: str) -> None:
    model = small_model(style)
    changed = [dataclasses.replace(ROWS[0], ids=[7] * len(ROWS[0].ids)), *ROWS[1:]]
    start = len(ROWS[0].ids)
    before, after = model.encode(pack(ROWS)), model.encode(pack(changed))
    assert before[start:].equal(after[start:])
    assert not torch.allclose(before[:start], after[:start])


@pytest.mark.parametrize("style", STYLES)
def test_order_of_packing_does_not_matter(style: str) -> None:
    model = small_model(style)
    forward, backward = model(pack(ROWS)), model(pack(ROWS[::-1]))
    counts = [len(row.masked) for row in ROWS]
    reordered = torch.cat(forward.padded_token_logits.split(counts)[::-1])
    torch.testing.assert_close(backward.padded_token_logits, reordered, rtol=0, atol=1e-5)
    if forward.pair_logits is not None:
        torch.testing.assert_close(backward.pair_logits, forward.pair_logits.flip(0), rtol=0, atol=1e-5)


@pytest.mark.parametrize("style", STYLES)
def test_a_fixed_shape_changes_neither_loss_nor_gradients(style: str) -> None:
    batch = pack(ROWS)
    fixed = batch.padded_to(tokens=batch.tokens + 70, sequences=20, masked=64)
    results = []
    for each in (batch, fixed):
        model = small_model(style)
        loss, statistics = PretrainingLoss(model, languages=3)(each, batch_totals([each]))
        loss.backward()
        results.append((loss.detach(), statistics, [p.grad for p in model.parameters()]))
    # Tolerance of a sum of up to 64 terms in another order.
    torch.testing.assert_close(results[0], results[1], rtol=8 * torch.finfo().eps, atol=1e-6)


def test_left_to_right_does_not_look_ahead() -> None:
    model = small_model("left-to-right")
    row = Row(ids=list(range(5, 25)), segment_a=20)
    changed = dataclasses.replace(row, ids=[*row.ids[:10], *[50] * 10])
    before, after = model.encode(pack([row])), model.encode(pack([changed]))
    assert before[:10].equal(after[:10])
    assert not torch.allclose(before[10], after[10])


def test_local_layers_see_their_window_only() -> None:
    model = small_model("modern", layers=2, global_every=9)
    config = model.config
    assert [config.is_local(layer) for layer in range(2)] == [False, True]
    layout = PaddedLayout.of_packed(torch.tensor([0, 20], dtype=torch.int32), 20, 20)
    layer = model.encoder.layers[1]
    hidden = torch.randn(20, 64)
    changed = hidden.clone()
    changed[10] = torch.randn(64)
    window = window_of(config, local=True)
    difference = (layer(hidden, layout, window, None) - layer(changed, layout, window, None)).abs().amax(1)
    assert (difference > 1e-4).nonzero().flatten().tolist() == list(range(7, 14))


def test_head_computes_at_masked_positions_only() -> None:
    batch = pack(ROWS)
    output = small_model()(batch)
    assert output.padded_token_logits.shape == (batch.masked_ids.shape[0], 128)
    assert output.pair_logits is not None
    assert output.pair_logits.shape == (9, 2)


def test_rows_beyond_the_vocabulary_take_no_probability_and_no_gradient() -> None:
    model = small_model()
    batch = pack(ROWS)
    PretrainingLoss(model)(batch, batch_totals([batch])).loss.backward()
    probabilities = model(batch).padded_token_logits.softmax(-1)
    assert probabilities[:, VOCAB:].eq(0).all()
    gradient = model.word_weight.grad
    assert gradient is not None
    assert gradient[VOCAB:].eq(0).all()
    assert model.word_weight[VOCAB:].eq(0).all()


@pytest.mark.parametrize("style", ["bert", "albert", "modern-pairs"])
def test_first_loss_is_a_uniform_guess(style: str) -> None:
    torch.manual_seed(1)
    model = BertPretraining(small_config(style, vocab_size=5000))
    batch = pack(random_rows(64, 5000, seed=3))
    loss, _ = PretrainingLoss(model)(batch, batch_totals([batch]))
    assert loss.item() == pytest.approx(math.log(5000) + math.log(2), abs=0.15)


def test_initial_weights_are_a_truncated_normal() -> None:
    torch.manual_seed(0)
    model = BertPretraining(small_config(hidden_size=256, heads=4))
    weight = model.get_parameter("encoder.layers.0.feed_forward.up.weight")
    assert float(weight.detach().abs().max()) <= 0.04
    assert float(weight.std()) == pytest.approx(0.02 * 0.8796, rel=0.03)
    assert model.token_head.bias.eq(0).all()


# Google's README gives 4.4, 11.3, 29.1, 41.7 and 110.1 million for the pooled encoders.
@pytest.mark.parametrize(
    ("size", "millions"), [("tiny", 4.4), ("mini", 11.2), ("small", 28.8), ("medium", 41.4), ("base", 109.5)]
)
def test_named_sizes_have_the_published_number_of_parameters(size: str, millions: float) -> None:
    with torch.device("meta"):
        model = BertPretraining(ModelConfig.model_validate({"size": size, "vocab_size": 30522}))
    heads = sum(p.numel() for head in (model.token_head, model.pair_head) if head for p in head.parameters())
    padding = (30528 - 30522) * model.config.hidden_size
    assert (parameter_count(model) - heads - padding) / 1e6 == pytest.approx(millions, abs=0.05)


def test_shared_layers_are_one_set_of_weights() -> None:
    shared = small_model("albert", layers=6)
    assert parameter_count(shared) == parameter_count(small_model("albert", layers=1))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"heads": 5}, "heads: 5 does not divide hidden_size 64"),
        ({"positions": "rotary", "hidden_size": 66, "heads": 22}, "even head size"),
        ({"embedding_size": 128}, "embedding_size: 128 is larger than hidden_size 64"),
        ({"local_window": 5}, "local_window: 5 is odd"),
        ({"segments": 1}, "segments: a pair objective needs 2"),
        (
            {"attention": "varlen", "attention_dropout": 0.1},
            "attention_dropout: 0.1, but the variable-length",
        ),
        ({"colour": "red"}, "colour"),
        ({"size": {}}, "size"),
    ],
)
def test_impossible_shapes_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_config(**fields)


def test_dumped_config_reads_back_as_itself() -> None:
    for style in STYLES:
        config = small_config(style)
        assert ModelConfig.model_validate(config.model_dump()) == config


def test_model_without_vocabulary_size_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.vocab_size"):
        BertPretraining(ModelConfig.model_validate({"size": "tiny"}))


def test_choose_kernel_gives_the_reason() -> None:
    config = small_config()
    assert choose_kernel(config, CPU, torch.bfloat16) == (
        "padded", "the variable-length kernel needs a CUDA device, not cpu",
    )  # fmt: skip
    asked = small_config(attention="varlen")
    with pytest.raises(ConfigError, match=r"model\.attention: varlen is not available"):
        choose_kernel(asked, CPU, torch.float32)


def test_attention_dropout_works_in_the_padded_kernel_and_is_refused_in_the_other() -> None:  # trainer-027
    model = small_model(attention_dropout=0.5)
    batch = pack(ROWS)
    assert model.encode(batch).equal(model.encode(batch))
    model.train()
    assert not model.encode(batch).equal(model.encode(batch))
    query = torch.zeros(1, 1, 8)
    layout = VarlenLayout(batch.cu_seqlens, 1)
    with pytest.raises(ValueError, match="no attention dropout"):
        layout.attend(query, query, query, window_of(model.config, local=False), 0.5)


def test_all_hidden_states_end_in_the_encoding() -> None:
    model = small_model("modern")
    states = model.hidden_states(pack(ROWS))
    assert len(states) == 1 + model.config.layers
    assert states[-1].equal(model.encode(pack(ROWS)))


@pytest.mark.parametrize("style", STYLES)
def test_packed_equals_padded_in_bfloat16(style: str) -> None:  # trainer-028
    torch.manual_seed(0)
    model = BertPretraining(small_config(style)).eval()
    ids, segments, mask = padded(ROWS, width=37)
    if not model.config.segments:
        segments = torch.zeros_like(segments)
    with torch.autocast("cpu", torch.bfloat16):
        packed = model.encode(pack(ROWS))
        rows = model.encode_padded(ids, segments, mask)
    torch.testing.assert_close(packed, rows[mask.bool()], rtol=2e-2, atol=2e-2)


def test_parameter_names_are_plain_under_compile() -> None:  # trainer-048
    model = small_model()
    names = set(model.state_dict())
    objective = PretrainingLoss(model)
    objective.compile(backend="eager")
    assert set(model.state_dict()) == names
    assert not any(name.startswith(("_orig_mod", "module")) for name in names)
    small_model(seed=3).load_state_dict(model.state_dict(), strict=True)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"segments": 3}, "two segments"),
        ({"heads": 8}, "not 8"),
        ({"heads": 4, "positions": "rotary"}, "not 16"),
        ({"intermediate_size": 100}, "multiples of 8, not 64, 100, 64"),
    ],
)
def test_fused_obstacle_names_the_reason(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], reason: str
) -> None:
    monkeypatch.setattr("trainer.model.attention.importlib.util.find_spec", lambda name: name)
    varlen = Kernel("varlen", "")
    for style in STYLES:
        assert fused_obstacle(small_config(style), varlen, torch.bfloat16) is None
    assert reason in str(fused_obstacle(small_config(**fields), varlen, torch.bfloat16))
    assert "bf16" in str(fused_obstacle(small_config(), varlen, torch.float16))
    assert fused_obstacle(small_config(), Kernel("padded", "no GPU"), torch.bfloat16) == "no GPU"
