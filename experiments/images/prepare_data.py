"""Prepares data sets for the experiments that read them.

Command: make data DATASETS="cifar10 cifar100", or
    python -m experiments.images.prepare_data --datasets=cifar10 --data_dir=data

CIFAR-10 takes about a minute and 500 MB after its download of 170 MB. Preparing needs TensorFlow,
reading what was prepared does not. A data set that is there already is left as it is.

ImageNet (imagenet2012) cannot be downloaded by a program: put its two archives,
ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar, into DATA_DIR/downloads/manual/ first. It takes
as much space again as the archives, 145 GB. We have run it on small archives only.
"""

import sys

from absl import app, flags

from identity_matters.images import datasets

_DATASETS = flags.DEFINE_list("datasets", [], "Which data sets, separated by commas or spaces.")
_DATA_DIR = flags.DEFINE_string("data_dir", "data", "Where they go.")
USAGE_ERROR = 2


def main(_) -> int:
    names = " ".join(_DATASETS.value).split()
    if not names:
        return _refuse(f"name some of {', '.join(datasets.NAMES)}: --datasets=cifar10")
    for name in names:
        if name not in datasets.NAMES:
            known = ", ".join(datasets.NAMES)
            return _refuse(f"there is no data set {name!r}; there are {known}")
    try:
        for name in names:
            print(f"{name}: preparing in {_DATA_DIR.value}", flush=True)
            for directory in datasets.prepare(name, _DATA_DIR.value):
                print(f"{name}: {directory}")
    except ValueError as error:
        return _refuse(str(error))
    return 0


def _refuse(message: str) -> int:
    print(f"prepare_data: {message}", file=sys.stderr)
    return USAGE_ERROR


if __name__ == "__main__":
    app.run(lambda argv: sys.exit(main(argv)))
