"""An exported model takes LoRA adapters of the peft library: only they train, and they can be merged."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.trainer.models import VOCAB, small_model
from tests.trainer.tokenizers_for_tests import write_tokenizer
from trainer.export.directory import ModelCard, export_model


@pytest.mark.parametrize(("style", "targets"), [("bert", ["query", "value"]), ("modern", ["Wqkv"])])
def test_adapters_train_and_merge(style: str, targets: list[str], tmp_path: Path) -> None:
    import peft  # here, because it takes a second in each process that collects this test

    tokenizer = write_tokenizer(tmp_path / "tokenizer", VOCAB)
    export_model(small_model(style), str(tmp_path / "model"), str(tokenizer), ModelCard("m"))
    load = transformers.AutoModelForSequenceClassification.from_pretrained
    torch.manual_seed(0)
    base: Any = load(tmp_path / "model", num_labels=2)
    before = {name: value.clone() for name, value in base.state_dict().items()}
    config = peft.LoraConfig(task_type="SEQ_CLS", r=4, lora_alpha=8, target_modules=targets)
    model = peft.get_peft_model(base, config)
    trainable = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trainable
    assert all("lora_" in name or "classifier" in name or "score" in name for name in trainable)
    ids = torch.randint(5, VOCAB, (16, 9), generator=torch.Generator().manual_seed(1))
    labels = (ids[:, 3] > VOCAB // 2).long()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.02)
    losses = []
    for _ in range(30):
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    model.eval()
    adapted = model(input_ids=ids).logits
    merged = model.merge_and_unload()
    torch.testing.assert_close(merged(input_ids=ids).logits, adapted, rtol=0, atol=1e-4)
    changed = {
        name
        for name, value in merged.state_dict().items()
        if name in before and not value.equal(before[name])
    }
    assert changed
    assert all(any(t in name for t in [*targets, "classifier", "score"]) for name in changed)
