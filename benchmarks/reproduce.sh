#!/usr/bin/env bash
# The figures of runtime/README.md, measured again on a host with GPUs and SGLang 0.5.23:
#
#   bash benchmarks/reproduce.sh WORK PART...
#
# one-by-one  NEXTN, one rank's shapes: everything on, everything off, SGLang's defaults, each one alone off
# few         of these the first three only, with more rounds
# plain       greedy answers and ms per step, everything on and off; with lively weights, what changes answers
# dspark      its artefacts, and compact against static verify
# ranks       NEXTN, then DSpark, on several ranks: on, off, without PDL, without all-reduce fusion; captures clean
#             and with faults, and what analyze says of them
#
# GPUS names the GPUs (0,1 by default). Parts with one rank use the first two, with two servers on each. WORK is
# made; what a part finds goes to WORK/PART, its table or answers to WORK/PART.txt. Ends with exit code 3 where
# something failed, or answers differ that should not.
set -u -o pipefail
refuse() {
  echo "reproduce: $1" >&2
  exit 2
}
[ $# -ge 2 ] || refuse "say where to work, and which parts; the first lines of this script name them"
for part in "${@:2}"; do
  case $part in
  one-by-one | few | plain | dspark | ranks) ;;
  *) refuse "no part is named $part" ;;
  esac
done
gpus=${GPUS:-0,1}
[[ $gpus =~ ^[0-9]+(,[0-9]+)+$ ]] || refuse "GPUS=$gpus: not two GPUs or more, as in 0,1"
work=$(mkdir -p -- "$1" && cd -- "$1" && pwd) || refuse "$1: cannot be worked in"
[[ $work != *[[:space:]]* ]] || refuse "$work: has a space in it"
shift
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
one=${gpus%%,*}
two=$(cut -d, -f2 <<<"$gpus")
ranks=$(tr , '\n' <<<"$gpus" | wc -l)
room="--max-total-tokens 24000 --mem-fraction-static 0.97" # two servers share a GPU
cd "$work" || exit 1 # beside the checkout's folders, which are no packages

lab() { "$python" -m latencylab "$@" || failed=3; }
measure() { # FOLDER and options of ledger.py
  local folder=$1
  shift
  "$python" "$here/ledger.py" "$folder" --sglang "$room" "$@" || failed=3
}
told() { # FOLDER SERVER KEY: of a server that was kept
  "$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$1/$2/server.json" "$3"
}
url() { echo "http://127.0.0.1:$(told "$1" "$2" port)"; }
end() { # FOLDER: the servers that were kept there
  for server in "$1"/*/server.json; do
    [ -e "$server" ] || continue
    kill -KILL -- "-$(told "$1" "$(basename "$(dirname "$server")")" pid)"
    rm "$server"
  done
}

nextn="--preset nextn --shape tp4-rank"
defaults() { # SGLang's own, but for what makes it this model, this way of decoding, and small enough
  lab runtime launch $nextn --dir "$work/shape" --dry-run >/dev/null
  echo "raw SGLANG_SIMULATE_UNIFORM_EXPERTS=1 SGLANG_SIMULATE_ACC_LEN=3.25 --model-path $work/shape/tp4-rank-x1" \
    "--load-format dummy --skip-tokenizer-init --attention-backend flashmla --context-length 16384" \
    "--speculative-algorithm NEXTN --speculative-num-steps 5 --speculative-eagle-topk 1" \
    "--speculative-num-draft-tokens 6 --max-mamba-cache-size 16 --cuda-graph-max-bs-decode 8 --random-seed 1"
}

few() {
  measure few --common "$nextn" --rounds 12 --server "on@$one" --server "off@$one --without all" \
    --server "on.2@$two" --server "defaults@$two $(defaults)"
  "$python" "$here/ledger_table.py" few
}

one_by_one() {
  measure one-by-one --common "$nextn" --keep on --server "on@$one" --server "off@$one --without all" \
    --server "on.2@$two" --server "defaults@$two $(defaults)"
  local names=(pdl fused-kda-verify kda-verify-block router-matvec fused-swiglu bf16-router bf16-lm-head
    small-moe-align fused-cache-locations fused-state-indices metadata-graph draft-extend-graph
    kda-no-host-lengths gc-freeze gc-threshold tuned-moe)
  local keep=(--keep on)
  while [ ${#names[@]} -gt 0 ]; do
    local servers=() places=("$one" "$two" "$two")
    for i in 0 1 2; do
      [ -n "${names[i]:-}" ] && servers+=(--server "${names[i]}@${places[i]} --without ${names[i]}")
    done
    names=("${names[@]:3}")
    [ ${#names[@]} -eq 0 ] && keep=()
    measure one-by-one --common "$nextn" "${keep[@]}" --server "on@$one" "${servers[@]}"
  done
  "$python" "$here/ledger_table.py" one-by-one
}

plain() {
  local check="--prompts 16 --input-tokens 512 --output-tokens 128"
  measure plain --common "--preset plain --shape tp4-rank" --keep on --keep off --keep lively --keep lively-off \
    --server "on@$one" --server "off@$one --without all" \
    --server "lively@$two --lively-weights" --server "lively-off@$two --lively-weights --without all"
  "$python" "$here/ledger_table.py" plain
  lab runtime check --url "$(url plain on)" $check --record plain/on.json --force
  lab runtime check --url "$(url plain off)" --against plain/on.json
  lab runtime check --url "$(url plain lively)" $check --twice --record plain/lively.json --force
  lab runtime check --url "$(url plain lively-off)" $check --record plain/lively-off.json --force
  # Which of them changes an answer, each alone off; and do those together account for everything off?
  local changing=() four
  for four in "bf16-router bf16-lm-head pdl fused-swiglu" "router-matvec tuned-moe small-moe-align"; do
    lively "$four" plain/lively.json || changing+=("${different[@]}")
  done
  echo "change answers: ${changing[*]:-none}"
  measure plain --common "--preset plain --shape tp4-rank --lively-weights" --rounds 2 --keep without-these \
    --server "without-these@$one ${changing[*]/#/--without }"
  lab runtime check --url "$(url plain without-these)" --against plain/lively-off.json
  end plain
}

lively() { # NAMES RECORDED: a server without each, four at most; whose answers differ is left in `different`
  local name servers=() places=("$one" "$one" "$two" "$two")
  different=()
  for name in $1; do
    servers+=(--keep "$name" --server "$name@${places[0]} --without $name")
    places=("${places[@]:1}")
  done
  measure plain --common "--preset plain --shape tp4-rank --lively-weights" --rounds 2 "${servers[@]}"
  for name in $1; do
    echo "lively, without $name:"
    "$python" -m latencylab runtime check --url "$(url plain "$name")" --against "$2" >"plain/$name.txt" 2>&1 &&
      continue
    # It ends alike where there was nothing to compare.
    grep -q "differs from" "plain/$name.txt" && different+=("$name") || failed=3
  done
  cat $(printf 'plain/%s.txt ' $1)
  [ ${#different[@]} -eq 0 ]
}

dspark() {
  mkdir -p dspark
  CUDA_VISIBLE_DEVICES=$one lab runtime dspark-fit -o dspark/fit --shape tp4-rank --force --requests 2 \
    --input-tokens 1024 --output-tokens 300 -- $room >dspark/fit.txt 2>&1 &
  CUDA_VISIBLE_DEVICES=$two lab runtime dspark-sps -o dspark/sps --shape tp4-rank --force --seconds 0 \
    --repeats 1 -- $room >dspark/sps.txt 2>&1 &
  wait
  cat dspark/fit.txt dspark/sps.txt
  mkdir -p dspark/artefacts dspark/steep
  cp dspark/fit/dspark-sts.* dspark/sps/dspark-sps.* dspark/artefacts/ || return
  cp dspark/fit/dspark-sts.* dspark/steep/
  # A made-up table by which each token more costs 6 %: the budget must fall.
  "$python" -c 'import json; print(json.dumps({"sample_batch_tokens": list(range(1, 10)), "sample_steps_per_sec":
    [100 * 0.94**n for n in range(9)], "max_batch_tokens": 9}))' >dspark/steep/dspark-sps.json
  measure dspark/runs --common "--preset dspark --shape tp4-rank" --server "on@$one" \
    --server "compact@$one --with ragged-compact --artefacts $work/dspark/artefacts" \
    --server "steep@$two --with ragged-compact --artefacts $work/dspark/steep" \
    --server "cap-accept@$two --with ragged-cap-accept --artefacts $work/dspark/artefacts"
  "$python" "$here/ledger_table.py" dspark/runs
}

ranks() {
  local late=$((ranks / 2)) slow=$((ranks / 2 - 1)) preset common name
  for preset in nextn dspark; do
    common="--preset $preset --shape tp4-rank --tp $ranks"
    for name in all pdl allreduce-fusion; do
      measure "ranks/$preset" --common "$common" --keep on --server "on@$gpus" \
        --server "without-$name@$gpus --without $name"
    done
    "$python" "$here/faults.py" "ranks/$preset/cases" --url "$(url "ranks/$preset" on)" --steps 60 --requests 4 \
      --server-dir "ranks/$preset/on/state" --case clean= --case kda=kda-cpu-seq-lens \
      --case "kda-one=kda-cpu-seq-lens:rank=$late" --case "late-host=sleep:us=400,rank=$late" \
      --case "slow-gpu=gpu-work:us=400,rank=$slow" || failed=3
    # A capture of it last, since a process stays slower once a profiler was on in it.
    measure "ranks/$preset" --rounds 1 --server "on@$gpus"
    "$python" "$here/ledger_table.py" "ranks/$preset"
    for name in clean kda kda-one late-host slow-gpu; do
      echo "== $preset $name"
      lab analyze "ranks/$preset/cases/$name" >"ranks/$preset/$name.txt"
      sed '/^──/,$d' "ranks/$preset/$name.txt" # the first screen of it
    done
  done
}

run() { # PART
  failed=0
  "${1//-/_}" || failed=3
  return $failed
}
status=0
for part in "$@"; do
  run "$part" 2>&1 | tee "$work/$part.txt" || status=3
done
exit $status
