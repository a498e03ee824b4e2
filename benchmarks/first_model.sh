#!/usr/bin/env bash
# Makes the first model, from text to scores, in the current folder:
#     bash /path/to/bertmill/benchmarks/first_model.sh STAGE...
# text DATA   files by source, and the evaluation sets, from a folder with pretrain/ and eval/
# corpus      shards from the text
# try         short runs, one per card, that differ in learning rate and batch (TRIES)
# pretrain    the run itself, for at most LIMIT seconds. Then it saves, and the same command resumes. Further
#             arguments override fields of the recipe.
# random      the same model with its initial random weights
# tasks       fine-tuning of both models with SEEDS of each task, distributed over the cards
set -euo pipefail
repo=$(cd "$(dirname "$0")/.." && pwd)
export PYTHONPATH=$repo${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
recipe=$repo/configs/recipes/first-model.yaml
cards=${CARDS:-0 1}
gpu=${GPU:-true}
stage=$1
shift

text() {
    python3 -m benchmarks.recipe.first_model_text "$1/pretrain/english.jsonl.zst" text
    mkdir -p eval/sib200
    cp -r "$1/eval/cola" "$1/eval/sst2" eval/
    cp "$1"/eval/sib200/eng_Latn/* eval/sib200/
}

# NAME CARD ROWS STEPS RATE: a separate run on one GPU
short_run() {
    CUDA_VISIBLE_DEVICES=$2 python3 "$repo/trainer/pretrain.py" --launcher local --config "$recipe" \
        --run.name="$1" --workers.use_gpu="$gpu" --workers.num_workers=1 --evaluation.every_steps="$4" \
        --checkpoints.every_steps=null --checkpoints.every_seconds=null \
        --phases="[{max_seq_length: 128, global_batch: $3, steps: $4, learning_rate: $5,
                    micro_batch_tokens: 131072}]" "${@:6}" >"$1.out" 2>&1
}

# TRIES: ROWS:STEPS:RATE for each card
try() {
    local number=0 one
    for one in ${TRIES:-512:900:2.0e-4 256:1500:1.0e-4}; do
        IFS=: read -r rows steps rate <<<"$one"
        short_run "try-$rows-$rate" "$(card $number)" "$rows" "$steps" "$rate" "$@" &
        number=$((number + 1))
    done
    wait
    grep -h '"evaluated"' runs/try-*/metrics/*/rank-00000.jsonl
}

card() {
    set -- "$1" $cards
    shift $(($1 % ($# - 1) + 1))
    echo "$1"
}

pretrain() {
    timeout --foreground --signal=TERM --kill-after=60 "${LIMIT:-86400}" \
        python3 "$repo/trainer/pretrain.py" --config "$recipe" "$@" || [ $? = 124 ]
}

random() {
    short_run first-model-random "$(card 0)" 64 1 1.0e-12 "$@"
}

# MODEL TASK SEED CARD and the fields that differ between tasks
task_run() {
    CUDA_VISIBLE_DEVICES=$4 OMP_NUM_THREADS=2 python3 -m bertmill finetune \
        --config "$repo/configs/finetune/first-model.yaml" -- --model="models/$1" --output="results/$1-$2-$3" \
        --seeds="[$3]" --use_gpu="$gpu" "${@:5}" >"results/$1-$2-$3.out" 2>&1
}

tasks() {
    local number=0 model seed
    mkdir -p results
    for model in first-model first-model-random; do
        python3 -m bertmill export "runs/$model" --to "models/$model"
    done
    for seed in ${SEEDS:-1 2 3 4 5}; do
        for model in first-model first-model-random; do
            task_run "$model" sst2 "$seed" "$(card $number)" --files.train='[eval/sst2/train.tsv.xz]' \
                --files.validation='[eval/sst2/dev.tsv.xz]' --files.test='{test: [eval/sst2/test.tsv.xz]}' "$@" &
            task_run "$model" cola "$seed" "$(card $((number + 1)))" --metric=matthews --files.text=3 \
                --files.train='[eval/cola/in_domain_train.tsv.xz]' \
                --files.validation='[eval/cola/in_domain_dev.tsv.xz]' \
                --files.test='{other-domains: [eval/cola/out_of_domain_dev.tsv.xz]}' "$@" &
            task_run "$model" sib200 "$seed" "$(card $((number + 2)))" --files.text=text --files.label=category \
                --files.train='[eval/sib200/train.tsv.xz]' --files.validation='[eval/sib200/dev.tsv.xz]' \
                --files.test='{test: [eval/sib200/test.tsv.xz]}' "$@" &
            number=$((number + 3))
        done
    done
    wait
    python3 -m benchmarks.recipe.first_model_results tasks results
}

case $stage in
text | try | pretrain | random | tasks) "$stage" "$@" ;;
corpus) python3 "$repo/pipeline/build_corpus.py" --config "$repo/configs/first-model-corpus.yaml" "$@" ;;
*) echo "first_model.sh: no stage $stage" >&2 && exit 2 ;;
esac
