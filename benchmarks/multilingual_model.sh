#!/usr/bin/env bash
# A multilingual model, scored zero-shot from English: text, corpus, rate, learning rate, pretraining, export, scorecard.
#     bash /path/to/bertmill/benchmarks/multilingual_model.sh --data DATA --out OUTPUT --cards 4
# The same command resumes after a kill. --help lists all arguments, and benchmarks/notes/model_recipes.md explains them.
set -euo pipefail
repo=$(cd "$(dirname "$0")/.." && pwd)
export PYTHONPATH=$repo${PYTHONPATH:+:$PYTHONPATH}
exec "${PYTHON:-python3}" -m benchmarks.recipe multilingual "$@"
