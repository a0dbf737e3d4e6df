"""Prepares data sets for the experiments that read them.

Command: make data DATASETS="cifar10 cifar100", or
    python -m experiments.images.prepare_data --datasets=cifar10 --data_dir=data

CIFAR-10 takes about a minute and 500 MB after its download of 170 MB. Preparing needs
TensorFlow; reading the prepared data does not. A data set that is already there is left
as it is.

ImageNet (imagenet2012) cannot be downloaded by a program: put its two archives,
ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar, into DATA_DIR/downloads/manual/
first. It takes another 145 GB, as much as the archives. We have run it on small
archives only.
"""

from absl import flags

from experiments import commands
from identity_matters.images import datasets, preparation

_DATASETS = flags.DEFINE_spaceseplist(
    "datasets", [], "Which data sets.", comma_compat=True
)
_DATA_DIR = flags.DEFINE_string("data_dir", "data", "Where they go.")


def main(_) -> int:
    known = ", ".join(datasets.NAMES)
    if not _DATASETS.value:
        raise flags.ValidationError(f"name some of {known}: --datasets=cifar10")
    for name in _DATASETS.value:
        if name not in datasets.NAMES:
            raise flags.ValidationError(
                f"there is no data set {name!r}; there are {known}"
            )
    try:
        for name in _DATASETS.value:
            print(f"{name}: preparing in {_DATA_DIR.value}", flush=True)
            for directory in preparation.prepare(name, _DATA_DIR.value):
                print(f"{name}: {directory}")
    except ValueError as error:
        raise flags.ValidationError(str(error)) from None
    return 0


if __name__ == "__main__":
    commands.run(main)
