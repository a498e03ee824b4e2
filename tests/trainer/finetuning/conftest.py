"""A pretrained model for the tests of fine-tuning."""

import pytest
import torch

from tests.trainer.models import VOCAB, small_config
from tests.trainer.tokenizers_for_tests import write_tokenizer
from trainer.export.directory import ModelCard, export_model
from trainer.model.pretraining import BertPretraining


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a small exported model with its tokenizer, to fine-tune."""
    folder = tmp_path_factory.mktemp("pretrained")
    torch.manual_seed(0)
    tokenizer = write_tokenizer(folder / "tokenizer", VOCAB)
    export_model(BertPretraining(small_config()), str(folder / "m"), str(tokenizer), ModelCard("m"))
    return str(folder / "m")
