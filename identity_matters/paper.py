"""What the paper and related work state: claims.toml as objects, bounds as functions.

The paper: M. Hardt and T. Ma, "Identity Matters in Deep Learning", arXiv 1611.04231.
"ICLR 2017" is the conference text, "v3" the arXiv text of July 2018.
"""

import math
import pathlib
import tomllib
from typing import Any, NamedTuple

from identity_matters.checks import check_whole, non_negative_number, positive_number


class Claim(NamedTuple):
    """A statement that an experiment checks; claims.toml describes the fields."""

    id: str
    title: str
    statement: str
    source: str
    latex: tuple[str, ...]
    published: str
    ours: tuple[str, ...]
    first: str
    note: str = ""
    command: str = ""
    agreeing_seeds: int = 1


class Finding(NamedTuple):
    """A finding that opens the report: its text with values, its claim and its figure.

    The claim is an id, the figure a name.
    """

    title: str
    text: str
    claim: str
    figure: str


class Caption(NamedTuple):
    """What is written about a figure.

    Attributes:
      title: one line.
      caption: the claim, what to look for, and the equation.
      description: what one sees in the figure of the reference runs, and what it says,
        for readers who do not see it.
    """

    title: str
    caption: str
    description: str


class Number(NamedTuple):
    """A published number with its unit, where it is printed, and a note."""

    value: float
    unit: str
    place: str
    note: str = ""


def _text(value: Any) -> Any:
    """Unwraps every text in claims.toml into one line; lists become tuples."""
    if isinstance(value, dict):
        return {name: _text(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return tuple(map(_text, value))
    return " ".join(value.split()) if isinstance(value, str) else value


def _claim(name: str, entry: dict) -> Claim:
    """The claim of one entry.

    Raises ValueError, which names it, if a field is missing or unknown.
    """
    needed = set(Claim._fields) - set(Claim._field_defaults) - {"id"}
    if missing := sorted(needed - entry.keys()):
        raise ValueError(f"claims.toml: [claim.{name}] lacks {', '.join(missing)}")
    if unknown := sorted(entry.keys() - set(Claim._fields)):
        raise ValueError(
            f"claims.toml: [claim.{name}] has unknown fields: {', '.join(unknown)}"
        )
    return Claim(name, **entry)


_FILE = pathlib.Path(__file__).with_name("claims.toml")
_DATA = _text(tomllib.loads(_FILE.read_text(encoding="utf-8")))
CLAIMS = {name: _claim(name, entry) for name, entry in _DATA["claim"].items()}
FINDINGS = tuple(Finding(**entry) for entry in _DATA["finding"])
FIGURES = {name: Caption(**entry) for name, entry in _DATA["figure"].items()}
NUMBERS = {name: Number(**entry) for name, entry in _DATA["number"].items()}
_TOP_1: dict[str, Any] = {"unit": "percent of test examples, top-1", "place": "Table 2"}
TABLE_2 = {  # method -> data set -> published error
    method: {data_set: Number(**entry, **_TOP_1) for data_set, entry in row.items()}
    for method, row in _DATA["table-2"].items()
}
REPORT = _DATA["report"]  # the other texts and settings of the report; see claims.toml


def cifar_training_flops(num_classes: int) -> float:
    """Floating-point operations to train Table 1's net on CIFAR.

    They are counted as by `flops.count_flops`; a backward pass costs two forward
    passes. ValueError unless `num_classes` is a whole number from 1.
    """
    num_classes = check_whole("num_classes", num_classes)
    # The stem: a 3x3 convolution of 3 colours to 16 channels, on 32 x 32 pixels.
    products = 9 * 3 * 16 * 32**2
    channels_in = 16
    for channels, side in ((64, 32), (128, 16), (256, 8)):
        # Nine blocks of two 3x3 convolutions: the first convolution changes the number
        # of channels, the other 17 keep it.
        products += 9 * channels * side**2 * (channels_in + 17 * channels)
        channels_in = channels
    products += num_classes * channels_in
    examples = NUMBERS["cifar_steps"].value * NUMBERS["cifar_batch_examples"].value
    passes = 3  # in units of a forward pass
    operations_per_product = 2
    return examples * passes * operations_per_product * products


def theorem_2_1_bound_iclr2017(gamma: float, depth: int) -> float:
    """Theorem 2.1 [ICLR 2017]: the norm of an optimum is at most this.

    |||A||| <= 2 (sqrt(pi) + sqrt(3 gamma))^2 / l. ValueError unless gamma is one number
    of 0 or more, and the depth a whole number from 1. So it is for the two below.
    """
    gamma = non_negative_number("gamma", gamma)
    depth = check_whole("depth", depth)
    return 2 * (math.sqrt(math.pi) + math.sqrt(3 * gamma)) ** 2 / depth


def theorem_2_1_bound_v3(gamma: float, depth: int) -> float:
    """Theorem 2.1 [v3]: for det R > 0 an optimum has |||A||| <= (4 pi + 3 gamma) / l.

    >>> round(theorem_2_1_bound_v3(gamma=0.5, depth=16), 3)
    0.879
    """
    gamma = non_negative_number("gamma", gamma)
    depth = check_whole("depth", depth)
    return (4 * math.pi + 3 * gamma) / depth


def theorem_2_1_bound_psd(gamma: float, depth: int) -> float:
    """Theorem 2.1, positive semidefinite R: |||A||| <= 3 gamma / l.

    The layers are A_i = R^{1/l} - I.
    """
    gamma = non_negative_number("gamma", gamma)
    depth = check_whole("depth", depth)
    return 3 * gamma / depth


def gradient_bound_iclr2017(depth: Any, tau: Any, sigma_min: Any, excess: Any) -> Any:
    """Eq. (2.3) [ICLR 2017]: a lower bound of the squared gradient.

    ||grad f||_F^2 >= 4 l (1-tau)^{l-1} sigma_min(Sigma)^2 (f - C).

    False as printed: see the claim equation-2-3-iclr2017. Arguments may be arrays that
    broadcast; 0 <= tau < 1.
    """
    return 4 * depth * (1 - tau) ** (depth - 1) * sigma_min**2 * excess


def gradient_bound_v3(depth: Any, tau: Any, sigma_min: Any, excess: Any) -> Any:
    """Eq. (2.3) [v3]: ||grad f||_F^2 >= 4 l (1-tau)^{2l-2} sigma_min(Sigma)^2 (f - C).

    False as printed: the power of sigma_min(Sigma) should be 1. Arguments may be arrays
    that broadcast; 0 <= tau < 1.
    """
    return 4 * depth * (1 - tau) ** (2 * depth - 2) * sigma_min**2 * excess


# Between these, rho and its square are normal floats, and so is the width.
_LEAST_RHO = 1e-150
_LARGEST_RHO = 1e150


def theorem_3_2_width(examples: int, rho: float) -> int:
    """Theorem 3.2: k = c log n / rho^2 with c = 10, rounded up, for n examples.

    rho is that of Assumption 3.1, the smallest squared distance of two examples.
    ValueError unless `examples` is a whole number from 1, and rho is one number from
    1e-150 to 1e150: beyond these its square is no normal float.
    """
    examples = check_whole("examples", examples)
    rho = positive_number("rho", rho)
    if not _LEAST_RHO <= rho <= _LARGEST_RHO:
        raise ValueError(
            f"rho must be from {_LEAST_RHO} to {_LARGEST_RHO}, got {rho}: scale the"
            " examples"
        )
    constant = NUMBERS["memorize_width_constant"].value
    return math.ceil(constant * math.log(examples) / rho**2)


class FewNumbers(NamedTuple):
    """How many numbers the network of (E11) in docs/theory/memorize.md stores.

    Attributes:
      input_map: d.
      groups: (k - 3) ceil(n / m).
      shared: r^2 + (k + 3) r + c_k, which does not grow with n.
    """

    input_map: int
    groups: int
    shared: int


def few_numbers(
    *, examples: int, features: int, num_classes: int, group_points: int, width: int = 6
) -> FewNumbers:
    """(E11), for n examples of d features with r labels, in groups of m points.

    Args:
      examples: n.
      features: d.
      num_classes: r.
      group_points: m.
      width: k, at least 6.
    Raises:
      ValueError: the width is not a whole number of at least 6, or another argument
        not one of at least 1.
    """
    examples = check_whole("examples", examples)
    features = check_whole("features", features)
    num_classes = check_whole("num_classes", num_classes)
    group_points = check_whole("group_points", group_points)
    width = check_whole("width", width, 6)
    constant = 1121 if width == 6 else 30 * width**2 + 18 * width + 13
    return FewNumbers(
        input_map=features,
        groups=(width - 3) * math.ceil(examples / group_points),
        shared=num_classes**2 + (width + 3) * num_classes + constant,
    )
