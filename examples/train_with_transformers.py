"""Pretrains a transformers BERT on a bertmill corpus with the Hugging Face Trainer.

    python examples/train_with_transformers.py runs/demo/corpus/manifest.json --output out --steps 200

The batches are those of a bertmill training run with the same seed. Run the command again with more steps to
resume from the last checkpoint. The state of the data is a function of the number of steps, so the Trainer
does not have to read and drop the rows before it.
"""

import argparse
from pathlib import Path

import transformers
from transformers.trainer_utils import get_last_checkpoint

import bertmill
from trainer.data.corpus import open_corpus


def main(argv: list[str] | None = None) -> float:
    """Trains, prints the loss of each logged step, and returns the mean loss of this call."""
    parser = argparse.ArgumentParser(description="Pretrain a transformers BERT on a bertmill corpus.")
    parser.add_argument("manifest", help="corpus manifest: path or URI")
    parser.add_argument("--output", required=True, help="folder for checkpoints and the model")
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps in total")
    parser.add_argument("--batch-size", type=int, default=32, help="sequences per batch")
    parser.add_argument(
        "--max-seq-length", type=int, default=128, help="sequence length: which set of the corpus"
    )
    parser.add_argument("--hidden-size", type=int, default=128, help="size of the model")
    parser.add_argument("--dropout", type=float, default=0.1, help="dropout of hidden states and attention")
    arguments = parser.parse_args(argv)

    dataset = bertmill.load_corpus(
        arguments.manifest, batch_size=arguments.batch_size, max_seq_length=arguments.max_seq_length
    )
    settings = transformers.TrainingArguments(
        output_dir=arguments.output,
        max_steps=arguments.steps,
        per_device_train_batch_size=arguments.batch_size,
        learning_rate=1e-3,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=10,
        save_steps=max(1, arguments.steps // 2),
        logging_steps=1,
        report_to="none",
        seed=12345,
        # The dataset seeks to the step itself, so the Trainer does not have to skip batches.
        ignore_data_skip=True,
    )
    checkpoint = get_last_checkpoint(arguments.output) if Path(arguments.output).is_dir() else None
    if checkpoint is not None:
        done = transformers.TrainerState.load_from_json(f"{checkpoint}/trainer_state.json").global_step
        dataset.load_state_dict(dataset.state_after(done))
        print(f"resuming after step {done}")
    transformers.set_seed(settings.seed)  # before the model draws its weights
    trainer = transformers.Trainer(
        model=transformers.BertForPreTraining(_model_config(arguments)),
        args=settings,
        train_dataset=dataset,
        data_collator=dataset.collator(pad_to_multiple_of=8),
    )
    loss = trainer.train(resume_from_checkpoint=checkpoint).training_loss
    trainer.save_model()
    return float(loss)


def _model_config(arguments: argparse.Namespace) -> transformers.BertConfig:
    return transformers.BertConfig(
        vocab_size=open_corpus(arguments.manifest).vocab_size,
        hidden_size=arguments.hidden_size,
        num_hidden_layers=2,
        num_attention_heads=max(1, arguments.hidden_size // 64),
        intermediate_size=4 * arguments.hidden_size,
        max_position_embeddings=512,
        hidden_dropout_prob=arguments.dropout,
        attention_probs_dropout_prob=arguments.dropout,
    )


if __name__ == "__main__":
    main()
