#!/usr/bin/env bash
# The benchmark of a 20 GB build in the background, on a host whose commands may take only some minutes.
#
#     benchmarks/corpus/large/build.sh FOLDER [CORES] [SECONDS] [GIGABYTES]
#
# Starts the benchmark unless it runs, waits at most SECONDS (default: 480) for its end, and prints what there is.
# Repeat the command until it prints "finished". After a lost process it continues with the first missing part.
# FOLDER needs 130 GB. PYTHONPATH must have Ray and the other packages.
set -euo pipefail
folder=$(realpath -m "$1") cores=${2:-54} seconds=${3:-480} gigabytes=${4:-20}
deadline=$((SECONDS + seconds))
mkdir -p "$folder"
cd "$(dirname "$0")/../../.."

running() { [ -f "$folder/pid" ] && kill -0 "$(cat "$folder/pid")" 2>/dev/null; }

if ! running && [ ! -f "$folder/finished" ]; then
  # A session of its own, so that the end of this command does not end it.
  setsid nohup nice -n 15 bash -c 'python3 -m benchmarks.corpus.large.build "$@" && touch "$1/finished"' benchmark \
    "$folder" --gigabytes "$gigabytes" --cores "$cores" --unit-bytes 8388608 \
    >>"$folder/benchmark.log" 2>&1 </dev/null &
  echo $! >"$folder/pid"
fi
while running && [ $SECONDS -lt $deadline ]; do sleep 2; done
tail -n 5 "$folder/benchmark.log"
[ ! -f "$folder/results.jsonl" ] || tail -n 1 "$folder/results.jsonl"
[ ! -f "$folder/results.md" ] || cat "$folder/results.md"
if [ -f "$folder/finished" ]; then
  echo finished
elif running; then
  echo "running; repeat the command"
else
  echo "ended with an error; see $folder/benchmark.log" >&2
  exit 1
fi
