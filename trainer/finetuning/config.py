"""The config of a fine-tuning run: every field, its default, its range and what it does."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from cluster.jobs.paths import Location
from trainer.config import Precision
from trainer.finetuning.heads.features import Choice
from trainer.finetuning.inputs.examples import Column
from trainer.recipe_config import Positive, Section

Task = Literal["classification", "regression", "tokens", "spans"]
Metric = Literal[
    "accuracy", "matthews", "f1", "macro_f1", "pearson", "spearman", "entity_f1", "exact", "answer_f1"
]

METRICS: dict[str, tuple[Metric, ...]] = {
    "classification": ("accuracy", "matthews", "f1", "macro_f1"),
    "regression": ("pearson", "spearman"),
    "tokens": ("entity_f1", "accuracy"),
    "spans": ("answer_f1", "exact"),
}


class Files(Section):
    """Labeled files and their columns."""

    train: Annotated[list[Location], Field(min_length=1)]
    """Files to train on. Sentences and pairs: TSV (without quotes), CSV, JSON, JSON Lines, Parquet, a folder
    in the Hub's layout, or datasets://OWNER/NAME, the last two with ?split=NAME. Tokens: CoNLL columns, or
    such a table with lists of words and of tags. Spans: SQuAD JSON, or such a table with SQuAD's columns
    question, context and answers."""
    validation: Annotated[list[Location], Field(min_length=1)]
    """Files on which the best epoch is chosen."""
    test: dict[str, list[Location]] = Field(default_factory=dict)
    """More sets by name, such as a test set or other languages, evaluated with the best epoch's weights."""
    text: Column = 0
    """Tables: column of the sentence. A number from 0, a name (in the header, if the file is text), or a list
    of alternative names."""
    pair: Column | None = None
    """Tables: column of the second sentence."""
    label: Column = 1
    """Tables: column of the label."""
    split_test_by: str | None = None
    """Tables: evaluate each value of this column of the test sets separately, such as XNLI's language."""
    only: dict[str, str] = Field(default_factory=dict)
    """Tables: column -> the value that training and validation rows must have, in files with the column."""
    same_labels: dict[str, str] = Field(default_factory=dict)
    """Tables: other spelling of a label -> the label."""
    word: Annotated[int, Field(ge=0)] | str | list[str] = 0
    """Tokens: column of the word, 1 in CoNLL-U and Universal NER. In tables also its name, such as tokens."""
    tag: Annotated[int, Field(ge=0)] | str | list[str] = 1
    """Tokens: column of the tag, 3 for UPOS in CoNLL-U, 2 in Universal NER, ner_tags in many tables."""
    skip_bad_lines: bool = False
    """Tables: skip lines with too few fields instead of refusing the file."""


class FinetuneConfig(Section):
    """Fine-tuning of one model on one task, with one or more seeds."""

    model: Location
    """Hugging Face directory, run, or checkpoint."""
    tokenizer: Location | None = None
    """Folder of tokenizer.json, by default that of the model."""
    output: Location
    """Folder or URI for results.json."""
    task: Task
    """classification or regression of sentences or pairs, tokens (tags of words), or spans (answers)."""
    metric: Metric | None = None
    """Metric for the best epoch, by default accuracy, pearson, answer_f1, and for tags entity_f1 if they mark
    entities (B-, I-) or else accuracy."""
    files: Files
    """Labeled files."""
    seeds: Annotated[list[int], Field(min_length=1, default_factory=lambda: [1])]
    """One training run for each seed of the new head, the order of the examples and dropout."""
    epochs: Positive = 3
    """Passes over the training examples."""
    early_stop: Annotated[int, Field(ge=1)] | None = None
    """Early stopping: epochs without a better validation metric after which a seed stops."""
    batch_size: Positive = 32
    """Examples (windows for spans) in a step."""
    learning_rate: Annotated[float, Field(gt=0, lt=1)] = 2e-5
    """Peak learning rate of a linear schedule."""
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of the steps for warm-up."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Weight decay of AdamW, except for biases and norms."""
    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    """Largest norm of the gradient (clipping)."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Dropout on hidden states and before the head, independent of the pretraining config."""
    max_seq_length: Annotated[int, Field(ge=8)] = 128
    """Longer inputs are truncated. Contexts of questions are split into windows of this length."""
    stride: Annotated[int, Field(ge=1)] = 64
    """spans: overlap of consecutive windows, in tokens."""
    max_answer_tokens: Positive = 30
    """spans: longest answer, in tokens."""
    max_train_examples: Positive | None = None
    """Use only the first examples of the training files."""
    max_eval_examples: Positive | None = None
    """Use only the first examples of the validation set and of each test set."""
    min_class_examples: Positive = 2
    """classification: a class with fewer training examples is an error, because it is most often a
    misspelled label or a header."""
    features: Choice = "last"
    """Hidden states that are the input of the head."""
    freeze_embeddings: bool = False
    """Do not train the embeddings."""
    freeze_layers: Annotated[int, Field(ge=0)] = 0
    """Do not train this many of the lowest layers."""
    reinitialize_layers: Annotated[int, Field(ge=0)] = 0
    """Reinitialize this many top layers, and the pooler."""
    save_model: bool = False
    """Write the best seed's best epoch as a Hugging Face directory, OUTPUT/model."""
    precision: Precision = "fp32"
    """bf16 runs the network under autocast."""
    use_gpu: bool = False
    """Train on a CUDA device: the first one, or one for each process of torchrun."""
    log_every: Positive = 50
    """Steps between two lines of progress."""
    save_every: Positive | None = 1
    """Epochs between two saved states, from which a killed run resumes, or null to save on SIGTERM only."""

    @model_validator(mode="after")
    def _consistent(self) -> "FinetuneConfig":
        if self.metric is not None and self.metric not in METRICS[self.task]:
            raise ValueError(f"metric: {self.metric} is not one of {', '.join(METRICS[self.task])}")
        if self.task == "spans" and self.stride >= self.max_seq_length:
            raise ValueError("stride: must be smaller than max_seq_length")
        return self
