#!/bin/sh
# Label photos with a trained detector, then train on both.
#
#     sh examples/label_photos.sh large.ckpt my/data.yaml photos --model.network.size n
#
# photos/images holds the images; my/data.yaml lists them too: train: [images/train, /path/to/photos/images]
set -e
teacher=$1 data=$2 photos=$3
shift 3
python cli.py predict --ckpt_path "$teacher" --source "$photos/images" --labels "$photos/labels" --names "$data" \
    --thresholds own --confidences false --images false
python cli.py fit --data.dataset "$data" "$@"
