#!/usr/bin/env bash
# What can be measured only on a GPU, in at most 8 minutes on one H100 or H200 without a network. Results go to $OUT, 4 files;
# the summary is printed last. A section that fails or takes too long does not stop the others.
#
# Once, on this machine, in the root of the checkout (.gpu and .whl travel with the call, 64 MiB in all with the checkout):
#
#   printf '/.gpu/\n/.whl/\n' >> .git/info/exclude
#   mkdir -p .gpu && cp -r ../shared/data/bccd/BCCD ../shared/weights/yolov5n.pt .gpu/
#   python3 -m pip download --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
#     --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
#     -d .whl WHEELS
#
# WHEELS, what was missing there (1 MB): jsonargparse==4.53.0 docstring-parser==0.18.0 typeshed-client==2.15.0. KINDS.md, beside
# the device tool's README.md, lists what is there. Then, in a call with `carry` .gpu and .whl and `timeout_s` 500:
#
#   python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site .whl/*.whl &&
#   export PYTHONPATH=/tmp/site && bash benchmarks/on_a_gpu.sh
#
# All limits together are 470 s. Rehearsal on a processor, about ten minutes of processor time (MODES=reduce-overhead takes longer):
#
#   DEVICE=cpu DATA=../shared/data/bccd/BCCD WEIGHTS=../shared/weights/yolov5n.pt OUT=/tmp/out SIZE=64 BATCH=4 SECONDS_EACH=1 EPOCHS=1 \
#     MODELS=n PRECISIONS="32-true bf16-mixed" MIXED=bf16-mixed MODES= WORKERS=0 SLOWER=3 bash benchmarks/on_a_gpu.sh
set -u
cd "$(dirname "$0")/.."
DEVICE=${DEVICE:-gpu} DATA=$(realpath "${DATA:-.gpu/BCCD}") WEIGHTS=$(realpath "${WEIGHTS:-.gpu/yolov5n.pt}") OUT=${OUT:-/tmp/out}
SIZE=${SIZE:-640} BATCH=${BATCH:-16} SECONDS_EACH=${SECONDS_EACH:-5} EPOCHS=${EPOCHS:-8} WORKERS=${WORKERS:-8}
MODELS=${MODELS:-n s} PRECISIONS=${PRECISIONS:-32-true 16-mixed bf16-mixed} MIXED=${MIXED:-16-mixed}
MODES=${MODES-blocks default reduce-overhead} SLOWER=${SLOWER:-1}  # SLOWER: multiplies all time limits
PYTHON=${PYTHON:-python3}
WORK=$(mktemp -d); export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 CUBLAS_WORKSPACE_CONFIG=:4096:8
mkdir -p "$OUT" "$WORK/logs" "$WORK/steps"
summary() {
  { echo "# $(date -u +%F) $($PYTHON -c 'import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU", torch.__version__)')"
    echo; echo "| section | result | seconds |"; echo "|---|---|---|"; cat "$WORK/sections"; echo
    echo "| training steps | images/s | waiting for data | GB |"; echo "|---|---|---|---|"
    $PYTHON - "$WORK"/steps/*.json <<'PY'
import json, pathlib, sys
for path in map(pathlib.Path, sys.argv[1:]):
    if path.is_file():
        row = json.loads(path.read_text())
        rate = row["images"] / row["seconds"] if row["steps"] else 0
        print(f"| {path.stem} | {rate:.1f} | {row['waiting']:.1%} | {row.get('GB', 0):.2f} |")
PY
    for name in loader ap resume auto validate; do echo; echo "## $name"; grep -hE '^\||batch_size|coco/AP|images/s|memory' "$WORK/logs/$name" | tail -8; done
  } > "$OUT/summary.md" 2>&1
  tail -n +1 "$WORK"/logs/* > "$OUT/logs.txt"
  cat "$OUT/summary.md"
}
trap summary EXIT
trap 'exit 1' TERM INT

section() {  # NAME LIMIT COMMAND...: run it with a time limit, into a log of its own
  local name=$1 limit=$(($2 * SLOWER)) begin=$SECONDS code=0; shift 2
  timeout -k 5 "$limit" "$@" > "$WORK/logs/$name" 2>&1 || code=$?
  echo "| $name | $([ $code = 0 ] && echo done || echo "exit status $code") | $((SECONDS - begin)) |" >> "$WORK/sections"
}
fit="$PYTHON cli.py fit --data.dataset $DATA --data.image_size $SIZE --data.batch_size $BATCH --data.workers $WORKERS
  --trainer.accelerator $DEVICE --trainer.devices 1 --trainer.enable_progress_bar false --report.enabled false --doctor.enabled false
  --pictures.enabled false --autoanchor.enabled false"
step() {  # NAME LIMIT OPTIONS...: the rate of training steps
  local name=$1 limit=$2; shift 2
  section "step-$name" "$limit" $fit --warmup.warmup_epochs 0 --model.optim.lr0 0 --trainer.max_epochs 1000000 \
    --trainer.limit_train_batches 12 --trainer.check_val_every_n_epoch 1000000 --trainer.limit_val_batches 0 --trainer.logger false \
    --run "$WORK/run-$name" --trainer.callbacks benchmarks.gpu_step.GpuStep --trainer.callbacks.report "$WORK/steps/$name.json" \
    --trainer.callbacks.seconds "$SECONDS_EACH" "$@"
}

# Timed, one after the other
for model in $MODELS; do
  for precision in $PRECISIONS; do
    step "$model-$precision" 25 --model.network.size "$model" --trainer.precision "$precision" --trainer.callbacks.profile "$OUT/profile.txt"
  done
done
for mode in $MODES; do
  options="--trainer.callbacks.mode $mode"
  [ "$mode" = blocks ] && options="--model.compile true"
  step "n-$MIXED-$mode" 50 --model.network.size n --trainer.precision "$MIXED" $options
done
section loader 25 $PYTHON -m benchmarks.loader "$DATA" --image_size "$SIZE" --cache ram

# Not timed, side by side
export OMP_NUM_THREADS=2
section tests 115 $PYTHON -m pytest -q -m quick -n 0 -p no:cacheprovider tests/model tests/training/test_batch_size.py &
section ap 115 $PYTHON -m benchmarks.recipes --data "$DATA" --seeds 0 --jobs 2 --folder "$WORK/ap" --recipe "32-true=--trainer.precision 32-true" \
  --recipe "$MIXED=--trainer.precision $MIXED" -- --trainer.max_epochs "$EPOCHS" --data.image_size "$SIZE" --data.batch_size "$BATCH" \
  --trainer.accelerator "$DEVICE" --model.start.weights "$WEIGHTS" --report.enabled false &
section resume 115 $PYTHON -m benchmarks.resume_fuzz --kills 1 --ranks 1 \
  --more "--trainer.accelerator $DEVICE --trainer.precision $MIXED --trainer.deterministic warn" &
section auto 115 $fit --data.batch_size auto --trainer.max_epochs 1 --trainer.limit_train_batches 2 --trainer.limit_val_batches 1 --run "$WORK/auto" &
section predict 115 $PYTHON cli.py predict --ckpt_path "$WEIGHTS" --source "$DATA/JPEGImages" --image_size "$SIZE" --run "$WORK/predict" &
section tiles 115 $PYTHON cli.py predict --ckpt_path "$WEIGHTS" --source "$DATA/JPEGImages/BloodImage_00000.jpg" --tile_size 320 --run "$WORK/tiles" &
section nccl 115 $PYTHON -m torch.distributed.run --standalone --nproc-per-node 1 -- ${fit#* } --trainer.strategy ddp --trainer.max_epochs 1 \
  --trainer.limit_train_batches 3 --run "$WORK/nccl" &
wait
section validate 30 $PYTHON cli.py validate --ckpt_path "$WORK/ap/BCCD/32-true/0/checkpoints/best.ckpt" --data.dataset "$DATA" \
  --trainer.precision "$MIXED" --trainer.accelerator "$DEVICE" --trainer.enable_progress_bar false --report.enabled false --run "$WORK/validate"
