"""The settings of trainings on images, in four groups: data, model, optim and train.

Each group is checked by the code that uses it; `train` turns them into a training. This
file loads neither JAX nor the data, so that --help answers at once. The comments on the
settings are what --help says of them.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from identity_matters import runs
from identity_matters.images import datasets, imagenet

if TYPE_CHECKING:
    from experiments.images.train import Training

# Single-step dispatches would make the host the bottleneck of an accelerator. On a CPU
# the steps of a dispatch are unrolled, which only takes longer to compile.
ACCELERATOR_STEPS_PER_DISPATCH = 100

# Which images, and how they are preprocessed.
DATA = {
    "dataset": "cifar10",  # all but digits need `make data`
    # per_image (the paper's), mean_std or, for CIFAR, gcn_zca
    "normalization": "per_image",
    # Random crops after padding: 2 as in the paper's base code, 4 as in others; 0 for
    # digits, whose strokes reach the border.
    "pad_pixels_per_side": 2,
    # Mirror images at random; not for digits, which lose their meaning when mirrored.
    "flip": True,
    "data_dir": "data",  # where `make data` put the data sets
}
DIGITS = {"dataset": "digits", "pad_pixels_per_side": 0, "flip": False}
DIGITS_INTERVALS = {"steps_per_evaluation": 100, "steps_per_checkpoint": 100}
IMAGENET_DATA = {
    "dataset": imagenet.NAME,
    "data_dir": "data",  # where `make data` put the data sets
    # If above 0: use this many generated training
    # images instead, made in data_dir if missing.
    "miniature_examples": 0,
    # Random crops in training; in evaluation the central crop of the resized image.
    "image_pixels": 224,
    "eval_shorter_side_pixels": 256,
    "normalization": "mean_std",
    # How batches are made, which affects speed only; 0 threads: one per core.
    "worker_threads": 0,
    "worker_processes": 0,
}
# The net of Table 1; what the paper leaves open is a setting.
ALL_CONV_RESIDUAL = {
    "name": "all_conv_residual",
    "blocks_per_stage": (9, 9, 9),  # residual blocks in each stage
    "widths": (64, 128, 256),  # channels of each stage
    "stage_strides": (1, 2, 2),  # stride of the first convolution of each stage
    "stem_width": 16,
    "stem_kernel_size": 3,
    "stem_stride": 1,
    # Initial residual weights, multiplied by initial_scale: paper (deviation
    # 1/(k^2 c)), standard (1/(k sqrt c)), he, fixup, unit_variance or
    # delta_orthogonal. nets/starts.py says what each is.
    "residual_init": "paper",
    "initial_scale": 1.0,  # factor of the initial deviation of residual weights
    # Slope of the activation below zero: 0.1 in the base code,
    # 0 in the paper's formula.
    "leak": 0.0,
    # whether a block starts with an activation, as in the base code
    "activate_first": False,
    # last linear map: fixed (the paper's: random, not trained) or trained
    "projection": "fixed",
    "identity": True,  # if False, a block is C2(ReLU(C1 x)) alone
    "batch_norm": False,  # section 4 says that with it a net of this size overfits
    # of convolutions: float32 or bfloat16; parameters are float32
    "compute_dtype": "float32",
}
_STEM_AND_WIDTHS = {
    "widths": (64, 128, 256, 512),
    "stem_width": 64,
    "stem_kernel_size": 7,
    "stem_stride": 2,
    "stage_strides": (2, 2, 2, 2),
}
# Readings of "an all-convolutional variant of the 34-layer network", for images of 224
# pixels a side; see `identity_matters.nets.all_conv_residual`.
IMAGENET_NETS = {
    "blocks_of_34_layers": {"blocks_per_stage": (3, 4, 6, 3), **_STEM_AND_WIDTHS},
    "parameters_as_printed": {"blocks_per_stage": (5, 5, 6, 6), **_STEM_AND_WIDTHS},
}
# Momentum SGD, by default as in section 4.
OPTIM = {
    "schedule": "step",  # step, cosine or constant
    "learning_rate": 0.05,
    # For schedule step: the steps at which
    # the learning rate is multiplied by decay_factor.
    "boundary_steps": (30_000, 50_000),
    "decay_factor": 0.1,
    # steps over which the learning rate grows linearly to its full value
    "warmup_steps": 0,
    "momentum": 0.9,
    "nesterov": False,
    # L2 penalty weight_decay / 2 * ||w||^2;
    # decayed says on what: convolutions, kernels or all.
    "weight_decay": 1e-4,
    "decayed": "convolutions",
}
# Length, batch sizes, and how often to log, evaluate and save.
TRAIN = {
    "steps": 60_000,
    "batch_examples": 128,
    # 0: 100 on an accelerator if the data are in its memory, else 1
    "steps_per_dispatch": 0,
    "steps_per_log": 100,
    "steps_per_evaluation": 1000,
    "steps_per_checkpoint": 1000,
    "evaluation_batch_examples": 1000,
    "devices": 0,  # 0: as many devices of this machine as divide the batch
    "keep_final_checkpoint": True,
}


def make_settings(scale: str, data: dict, model: dict, optim: dict, **train) -> dict:
    """The settings of a variant, except its name, given how they differ from the above.

    Args:
      scale: "paper" or "reduced".
      data: must hold "dataset".
      model: if it has a "name", it does not get the defaults of Table 1's net.
      optim: changes of `OPTIM`.
      train: changes of `TRAIN`.
    """
    is_imagenet = data["dataset"] == imagenet.NAME
    return {
        "scale": scale,
        "data": {**(IMAGENET_DATA if is_imagenet else DATA), **data},
        "model": model if "name" in model else {**ALL_CONV_RESIDUAL, **model},
        "optim": {**OPTIM, **optim},
        "train": {**TRAIN, **train},
    }


def steps_at(batch_examples: int, *epochs: int) -> tuple[int, ...]:
    """The steps that complete these numbers of epochs of CIFAR's training images."""
    examples = datasets.SOURCES["cifar10"].splits["train"]
    return tuple(epoch * examples // batch_examples for epoch in epochs)


def dispatches_at(batch_examples: int, *epochs: int) -> tuple[int, ...]:
    """`steps_at`, rounded to whole dispatches of an accelerator.

    A shorter last dispatch is a program of its own, which takes as long to compile as
    the first: 15 minutes for DenseNet on a TPU.
    """
    unit = ACCELERATOR_STEPS_PER_DISPATCH
    return tuple(
        round(step / unit) * unit for step in steps_at(batch_examples, *epochs)
    )


def require_use(
    model: dict, defaults: dict, *, changes: Collection[dict], setting: str
) -> None:
    """Raises ValueError for a change of `model` that none of several nets would have.

    Args:
      model: the settings that the nets have in common.
      defaults: those of the unchanged variant.
      changes: of `model`, of each net; those that name a net replace it as a whole.
      setting: where `changes` stand.
    """
    for name in runs.differences(defaults, model):
        if all(name in changed or "name" in changed for changed in changes):
            raise ValueError(
                f"model.{name} would change nothing: each of {setting} has its own"
            )


def one_training(*, variant: str, **groups) -> list[dict]:
    """The trials of a variant with a single training."""
    return [groups]


def build_training(**groups) -> "Training":
    """One training, built from its settings; ValueError if they cannot be used."""
    # Imported here because it loads the training loop, for which --help does not wait.
    from experiments.images.train import Training

    return Training(**groups)
