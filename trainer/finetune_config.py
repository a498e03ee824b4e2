"""The config of a fine-tuning: every field, its default, its range and what it does."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trainer.config import Positive, Precision, Section
from trainer.features import Choice
from trainer.task_data import Column

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
    """Labelled files and where their columns are."""

    train: Annotated[list[str], Field(min_length=1)]
    """Files to train on: TSV for sentences and pairs, CoNLL columns for tokens, SQuAD JSON for spans."""
    validation: Annotated[list[str], Field(min_length=1)]
    """Files that choose the best epoch."""
    test: dict[str, list[str]] = Field(default_factory=dict)
    """More sets by name, measured with the best epoch's weights: a test set, other languages."""
    text: Column = 0
    """TSV: the sentence. A number from 0, a name in the header line, or names of which a file has one."""
    pair: Column | None = None
    """TSV: the second sentence."""
    label: Column = 1
    """TSV: the label."""
    split_test_by: str | None = None
    """TSV: measure each value of this column of the test sets apart, the language in XNLI."""
    only: dict[str, str] = Field(default_factory=dict)
    """TSV: value that train and validation rows must have in a column, in files that have the column."""
    same_labels: dict[str, str] = Field(default_factory=dict)
    """TSV: labels that are another spelling of a label."""
    word: Annotated[int, Field(ge=0)] = 0
    """CoNLL: column of the word; 1 in CoNLL-U and Universal NER."""
    tag: Annotated[int, Field(ge=0)] = 1
    """CoNLL: column of the tag; 3 for UPOS in CoNLL-U, 2 in Universal NER."""
    skip_bad_lines: bool = False
    """TSV: pass over lines with too few fields instead of refusing the file."""


class FinetuneConfig(Section):
    """A fine-tuning of one model on one task, with one or more seeds."""

    model: str
    """Hugging Face directory, run, or checkpoint."""
    tokenizer: str | None = None
    """Folder of tokenizer.json; the model's own by default."""
    output: str
    """Folder or URI for results.json."""
    task: Task
    """classification and regression of sentences or pairs, tokens (tags of words), spans (answers)."""
    metric: Metric | None = None
    """What chooses the best epoch; by default accuracy, pearson, entity_f1 or answer_f1."""
    files: Files
    """Labelled files."""
    seeds: Annotated[list[int], Field(min_length=1, default_factory=lambda: [1])]
    """One training for each: of the new head, the order of the examples, and dropout."""
    epochs: Positive = 3
    """Passes over the training examples."""
    early_stop: Annotated[int, Field(ge=1)] | None = None
    """Epochs without a better validation metric after which a seed stops."""
    batch_size: Positive = 32
    """Examples (windows, for spans) of a step."""
    learning_rate: Annotated[float, Field(gt=0, lt=1)] = 2e-5
    """Peak of a linear schedule."""
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of the steps until the peak."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """AdamW's; none on biases and norms."""
    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    """Largest norm of the gradient."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """On hidden states and before the head, whatever the pretraining had."""
    max_seq_length: Annotated[int, Field(ge=8)] = 128
    """Longer inputs are cut; contexts of questions are read in windows of this length."""
    stride: Annotated[int, Field(ge=1)] = 64
    """spans: tokens that a window has in common with the next."""
    max_answer_tokens: Positive = 30
    """spans: longest answer."""
    max_train_examples: Positive | None = None
    """Take only the first examples of the training files."""
    features: Choice = "last"
    """Hidden states that the head sees."""
    freeze_embeddings: bool = False
    """Do not train the embeddings."""
    freeze_layers: Annotated[int, Field(ge=0)] = 0
    """Do not train the lowest layers."""
    reinitialize_layers: Annotated[int, Field(ge=0)] = 0
    """Draw the top layers and the pooler anew."""
    save_model: bool = False
    """Write the best seed's best epoch as a Hugging Face directory, OUTPUT/model."""
    precision: Precision = "fp32"
    """bf16 runs the network under autocast."""
    use_gpu: bool = False
    """Train on the first CUDA device."""

    @model_validator(mode="after")
    def _consistent(self) -> "FinetuneConfig":
        if self.metric is not None and self.metric not in METRICS[self.task]:
            raise ValueError(f"metric: {self.metric} is not one of {', '.join(METRICS[self.task])}")
        if self.task == "spans" and self.stride >= self.max_seq_length:
            raise ValueError("stride: must be below max_seq_length")
        return self

    @property
    def chosen_metric(self) -> Metric:
        """The metric that chooses the best epoch."""
        return self.metric or METRICS[self.task][0]
