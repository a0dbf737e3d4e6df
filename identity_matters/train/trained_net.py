"""A trained net: net, variables and preprocessing in one object.

Variables alone do not say how images must be normalised before the net sees them, and
with another normalisation a net gives labels that look like labels and are wrong. So
the three stay together.
"""

import dataclasses
import functools
import inspect
import os
import pathlib
from typing import Any

import flax.core
import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from identity_matters import flops, runs
from identity_matters.checks import check_whole, label_array
from identity_matters.preprocessing import MUCH_LARGER, Preprocessing, shown_shape
from identity_matters.train import net_source
from identity_matters.train.checkpoint import (
    NetAndPreprocessing,
    read_saved,
    write_variables,
)
from identity_matters.train.checkpoint_storage import (
    CheckpointError,
    MissingCheckpointError,
)

BATCH_EXAMPLES = 1000
# a directory for each net, by its name
SHIPPED = pathlib.Path(__file__).parent / "shipped"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TrainedNet:
    """A net with its variables, and the preprocessing that it was trained with.

    Attributes:
      net: a flax module, called as ``net(x, train=...)``; it returns logits f32[n, k],
        or a tuple that starts with them.
      variables: its collections by name, as from `train` or `load_variables`.
      preprocessing: from the raw images that the methods take to the inputs of the net.

    The methods may go on with copies of the variables, so do not change them in place:
    make another `TrainedNet`.

    Raises ValueError if the three do not fit together.
    """

    net: nn.Module
    variables: dict
    preprocessing: Preprocessing

    def __post_init__(self):
        if not isinstance(self.preprocessing, Preprocessing):
            raise ValueError(
                "preprocessing must be an"
                " identity_matters.preprocessing.Preprocessing, got"
                f" {type(self.preprocessing).__name__}"
            )
        # It raises if they do not fit.
        count_classes(self.net, self.variables, self.preprocessing.image_shape)

    def __reduce__(self):
        # The program that `logits` has compiled cannot be pickled.
        return type(self), (self.net, self.variables, self.preprocessing)

    def __repr__(self) -> str:
        """One line: net, parameters, raw images and normalisation."""
        parameters = flops.count_parameters(self.variables.get("params", {}))
        preprocessing = self.preprocessing
        images = f"{preprocessing.dtype}{shown_shape(preprocessing.image_shape)}"
        return (
            f"TrainedNet({type(self.net).__name__}, {parameters:,} parameters,"
            f" {images}, {preprocessing.normalization})"
        )

    def predict(
        self, images: Any, *, batch_examples: int = BATCH_EXAMPLES
    ) -> np.ndarray:
        """The labels of raw images, i64[n].

        Each is the first of the largest logits, as `evaluate` counts.

        Args, Raises: see `logits`.
        """
        return self.logits(images, batch_examples=batch_examples).argmax(axis=1)

    def logits(
        self, images: Any, *, batch_examples: int = BATCH_EXAMPLES
    ) -> np.ndarray:
        """The logits of raw images, f32[n, k].

        Args:
          images: [n, ...], of the dtype and shape of the training's, see
            `preprocessing`.
          batch_examples: how many images are computed at a time.
        Raises:
          ValueError: other images (see `Preprocessing.check_images`), or logits that
            are NaN or above the largest float.
        """
        # As Python's integer: a short one of NumPy would overflow.
        batch_examples = check_whole("batch_examples", batch_examples)
        raw = self.preprocessing.check_images("images", images)
        size = min(batch_examples, len(raw))
        parts = []
        for start in range(0, len(raw), size):
            batch = raw[start : start + size]
            # Of the size of the others, so that one program computes all of them.
            padded = np.concatenate(
                [batch, np.repeat(batch[-1:], size - len(batch), axis=0)]
            )
            parts.append(
                np.asarray(self._logits(self._on_device, padded))[: len(batch)]
            )
        logits = np.concatenate(parts)
        # -inf is the logit of a class that a net rules out.
        unusable = np.isnan(logits) | (logits == np.inf)
        if unusable.any():
            first, label = map(int, np.argwhere(unusable)[0])
            shown = "NaN" if np.isnan(logits[first, label]) else "infinity"
            reason = self._reason_for_overflow(raw[first : first + 1])
            raise ValueError(f"the net gives {shown} for images[{first}]: {reason}")
        return logits

    def evaluate(
        self, images: Any, labels: Any, *, batch_examples: int = BATCH_EXAMPLES
    ) -> dict[str, Any]:
        """How well the net labels these images.

        Args:
          images: see `logits`.
          labels: int[n], from 0, each less than the number of logits.
        Returns:
          {"examples": n, "errors": how many labels `predict` misses, "error_percent":
          of n, "loss": the mean cross entropy}.
        Raises:
          ValueError: as `logits` does, and for other labels.
        """
        logits = self.logits(images, batch_examples=batch_examples)
        truth = whole_labels(
            "labels", labels, examples=len(logits), classes=logits.shape[1]
        )
        errors = int((logits.argmax(axis=1) != truth).sum())
        wide = logits.astype(np.float64)
        losses = (
            scipy.special.logsumexp(wide, axis=1) - wide[np.arange(len(wide)), truth]
        )
        return {
            "examples": len(truth),
            "errors": errors,
            "error_percent": 100 * errors / len(truth),
            "loss": float(losses.mean()),
        }

    def save(
        self, directory: str | os.PathLike[str], *, rounded_to: float | None = None
    ) -> None:
        """Saves all three for `load`.

        Args:
          directory: made if missing; a leading ``~`` is your home.
          rounded_to: if given, each float32 array of 10,000 numbers or more is rounded
            to multiples of this, and kept in a byte a number, unless one of them is
            beyond 127 times this. Evaluate the net that `load` gives: how much may be
            rounded without harm differs from net to net.
        Raises:
          ValueError: `rounded_to` is not a positive number.
          CheckpointError, trees.NotStorableError: as `save_variables` does.
        """
        belongs_to = NetAndPreprocessing(
            net_source.describe(self.net), self.preprocessing
        )
        write_variables(
            directory, self.variables, belongs_to=belongs_to, rounded_to=rounded_to
        )

    def _reason_for_overflow(self, image: np.ndarray) -> str:
        """Whether the variables are at fault, or the values of this image, [1, ...]."""
        unusable = "its variables are not usable"
        if not all(_is_finite(leaf) for leaf in jax.tree.leaves(self.variables)):
            return unusable
        largest = float(np.abs(image).max())
        of_training = self.preprocessing.largest
        if of_training is None and image.dtype == np.float32:
            return (
                f"its variables, or the image's values, up to {largest:.3g}, are not"
                " usable"
            )
        if of_training is not None and largest > MUCH_LARGER * of_training:
            return (
                f"the image's values go up to {largest:.3g}, those of the training"
                f" images went up to {of_training:.3g}: scale both in the same way"
            )
        return unusable

    @functools.cached_property
    def _on_device(self) -> dict:
        return jax.device_put(self.variables)

    @functools.cached_property
    def _logits(self):
        # Not jitted as a function of the net:
        # one with a list in a field cannot be hashed.
        def logits(variables, images):
            x = self.preprocessing.eval_input(images)
            return apply(self.net, variables, x, train=False)[0]

        return jax.jit(logits)


def _is_finite(leaf: Any) -> bool:
    """Whether a variable, of any type, holds neither NaN nor infinity."""
    return bool(np.isfinite(np.asarray(leaf)).all())


def load(
    directory: str | os.PathLike[str],
    *,
    net: nn.Module | None = None,
    preprocessing: Preprocessing | None = None,
) -> TrainedNet:
    """The net in `directory`, from `TrainedNet.save` or from an experiment.

    Args:
      directory: of the checkpoints; a leading ``~`` is your home. Or a name of
        `shipped_nets`, if there is no such directory.
      net: needed if its class is not of this package and has not been imported, or if a
        field of it cannot be stored.
      preprocessing: needed if the checkpoint holds none, and only then.
    Raises:
      CheckpointError: there is no checkpoint, it is damaged, or it holds variables
        alone.
      net_source.NetUnknownError: the net cannot be made, or `net` is a different one.
    """
    try:
        saved = read_saved(_find(directory))
    except MissingCheckpointError as error:
        if not (names := ", ".join(shipped_nets())):
            raise
        raise MissingCheckpointError(
            f"{error}; the nets that come by name are: {names}"
        ) from None
    if saved.belongs_to is not None:
        if preprocessing is not None:
            raise CheckpointError(
                f"{directory} holds a preprocessing already: leave out yours"
            )
        made = net_source.make(saved.belongs_to.net, net)
        return TrainedNet(made, saved.variables, saved.belongs_to.preprocessing)
    if net is None or preprocessing is None:
        raise CheckpointError(
            f"{directory} holds variables without their net and preprocessing: pass"
            " net=... and preprocessing=..., or, for a run of an experiment, use"
            " experiments.images.train.load"
        )
    return TrainedNet(net, saved.variables, preprocessing)


def shipped_nets() -> list[str]:
    """The names of the trained nets that this package contains, for `load`."""
    return sorted(path.name for path in SHIPPED.iterdir()) if SHIPPED.is_dir() else []


def _find(directory: str | os.PathLike[str]) -> str:
    """The directory that `load` means."""
    given = os.fspath(directory)
    if given in shipped_nets() and not os.path.exists(given):
        return os.fspath(SHIPPED / given)
    return given


def count_classes(net: nn.Module, variables: dict, image_shape: tuple[int, ...]) -> int:
    """The number k of logits that the net gives for inputs f32[n, *image_shape].

    Raises a one-line ValueError if `net` is not a flax.linen.Module, if it cannot take
    such inputs with these variables, or if its outputs are not logits [n, k].
    """
    net_source.check_is_linen(net)
    if not isinstance(variables, dict | flax.core.FrozenDict):
        raise ValueError(f"variables must be a dict, got {type(variables).__name__}")
    given = jax.tree.structure(variables)
    unboxed = jax.tree.structure(nn.meta.unbox(variables))
    if str(given) != str(unboxed):
        raise ValueError(
            "variables are boxed with metadata: unbox them by flax.linen.meta.unbox"
        )
    logits = _outputs_of_two(net, variables, image_shape)
    if getattr(logits, "ndim", None) != 2 or len(logits) != 2:
        raise ValueError(
            f"the net must give logits [n, k], got {getattr(logits, 'shape', logits)}"
        )
    if logits.dtype != jnp.float32:
        raise ValueError(f"the net must give floating-point logits, got {logits.dtype}")
    return logits.shape[1]


def _outputs_of_two(
    net: nn.Module, variables: dict, image_shape: tuple[int, ...]
) -> Any:
    """What the net gives for inputs f32[2, *image_shape], as shapes and dtypes."""
    example = jax.ShapeDtypeStruct((2, *image_shape), jnp.float32)
    try:
        outputs, _ = jax.eval_shape(
            lambda v, x: apply(net, v, x, train=False), variables, example
        )
    except (TypeError, ValueError, AttributeError, flax.errors.FlaxError) as error:
        hint = ""
        if len(image_shape) == 2:
            hint = "; if images lack the axis of channels, pass images[..., None]"
        raise ValueError(
            f"the net, with these variables, cannot take images"
            f" {shown_shape(image_shape)} (examples first, channels last){hint}:"
            f" {runs.first_line(error)}"
        ) from error
    return outputs


def whole_labels(name: str, labels: Any, *, examples: int, classes: int) -> np.ndarray:
    """A user's argument `name` as i64[examples]; ValueError for any other labels."""
    array = label_array(name, labels, examples)
    least = int(array.min())
    largest = int(array.max())
    if least < 0 or largest >= classes:
        raise ValueError(
            f"{name} must be from 0 to {classes - 1}, got {least} to {largest}"
        )
    return array.astype(np.int64)


def apply(
    net: nn.Module,
    variables: Any,
    x: Any,
    *,
    train: bool,
    keys: jax.Array | None = None,
) -> tuple[jax.Array, dict]:
    """Logits f32[n, k], and what else `step.Task.apply` returns, of any flax module.

    Residual ratios are left out, since not every module has them.
    """
    arguments: dict[str, Any] = {
        "train": train,
        "mutable": ["batch_stats"] if train else [],
    }
    if train:
        # The nets of this suite take one dropout key
        # per example, other flax modules a single rng.
        takes_keys = "keys" in inspect.signature(type(net).__call__).parameters
        assert keys is not None
        arguments |= {"keys": keys} if takes_keys else {"rngs": {"dropout": keys[0]}}
    outputs, changed = net.apply(variables, x, **arguments)
    logits = outputs[0] if isinstance(outputs, tuple) else outputs
    if isinstance(logits, jax.Array) and jnp.issubdtype(logits.dtype, jnp.floating):
        # In the bfloat16 of a net, losses and their sums would have two digits.
        logits = logits.astype(jnp.float32)
    return logits, {
        "residual_ratio": jnp.zeros((0, len(x)), jnp.float32),
        "batch_stats": (changed if train else variables).get("batch_stats", {}),
    }
