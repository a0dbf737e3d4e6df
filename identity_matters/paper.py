"""What the paper and its neighbours print, as data. Nothing else in the project repeats it.

The paper: M. Hardt and T. Ma, "Identity Matters in Deep Learning", arXiv 1611.04231. Where its
versions differ, "ICLR 2017" is the conference text and "v3" the arXiv text of July 2018.
Every entry names its place in the paper. Errors in print are kept as printed; `note` says what is
wrong with them, and the experiments measure it.
"""

import dataclasses
import math

ARXIV = "arXiv:1611.04231"


@dataclasses.dataclass(frozen=True)
class Claim:
    """One statement that an experiment checks. `key` is the "claim" field of summary.json."""

    key: str
    statement: str
    source: str
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Number:
    """One published number with its unit, its place in print and where it comes from."""

    value: float
    unit: str
    place: str
    note: str = ""


def theorem_2_1_bound_iclr2017(gamma: float, depth: int) -> float:
    """Theorem 2.1 [ICLR 2017]: an optimum has |||A||| <= 2 (sqrt(pi) + sqrt(3 gamma))^2 / l."""
    return 2 * (math.sqrt(math.pi) + math.sqrt(3 * gamma)) ** 2 / depth


def theorem_2_1_bound_v3(gamma: float, depth: int) -> float:
    """Theorem 2.1 [v3]: for det R > 0 an optimum has |||A||| <= (4 pi + 3 gamma) / l."""
    return (4 * math.pi + 3 * gamma) / depth


def theorem_2_1_bound_psd(gamma: float, depth: int) -> float:
    """Theorem 2.1, positive semidefinite R: A_i = R^{1/l} - I has |||A||| <= 3 gamma / l."""
    return 3 * gamma / depth


def theorem_2_1_least_depth(gamma: float) -> int:
    """Theorem 2.1 asks for l >= 3 gamma layers, hence for at least ceil(3 gamma), and for one."""
    return max(1, math.ceil(3 * gamma))


def gradient_bound_iclr2017(depth, tau, sigma_min, excess):
    """Eq. (2.3) [ICLR 2017]: ||grad f||_F^2 >= 4 l (1-tau)^{l-1} sigma_min(Sigma)^2 (f - C).

    False as printed, for two reasons: see the claim of the same name. The arguments may be floats
    or arrays that broadcast.
    """
    return 4 * depth * (1 - tau) ** (depth - 1) * sigma_min**2 * excess


def gradient_bound_v3(depth, tau, sigma_min, excess):
    """Eq. (2.3) [v3]: ||grad f||_F^2 >= 4 l (1-tau)^{2l-2} sigma_min(Sigma)^2 (f - C).

    False as printed: sigma_min(Sigma) belongs to the first power. Arguments as above.
    """
    return 4 * depth * (1 - tau) ** (2 * depth - 2) * sigma_min**2 * excess


def theorem_3_2_width(examples: int, rho: float) -> int:
    """Theorem 3.2: k = c log n / rho^2 with c = 10, rounded up, for n examples rho apart."""
    constant = NUMBERS["expressivity_width_constant"].value
    return math.ceil(constant * math.log(examples) / rho**2)


def theorem_3_2_order(examples: int, num_classes: int) -> float:
    """Theorem 3.2: n log n + r^2, the expression inside the O for parameters, no constant."""
    return examples * math.log(examples) + num_classes**2


def yun_2019_order(examples: int) -> float:
    """Yun, Sra & Jadbabaie 2019 (arXiv 1810.07770): Theta(sqrt n) hidden nodes fit n points.

    Two hidden layers of that width have Theta(n) weights between them: the expression inside the
    Theta for parameters, without its constant. From memory of the paper: unverified.
    """
    return float(examples)


def vardi_2021_order(examples: int) -> float:
    """Vardi, Yehudai & Shamir 2021 (arXiv 2110.03187): O~(sqrt n) parameters fit n points.

    The expression inside the O~, without constant and logarithms. From memory: unverified.
    """
    return math.sqrt(examples)


PAPER = "Hardt & Ma 2016"

_CLAIMS = (
    Claim(
        "Theorem 2.1",
        "If l ≥ 3γ and det R > 0, some global optimum has |||A||| ≤ (4π + 3γ)/l"
        " [ICLR 2017: 2(√π + √(3γ))²/l].",
        f"{PAPER}, Theorem 2.1 and appendix A.1",
        "det R > 0 is missing from the ICLR 2017 statement; without it the statement is false,"
        " because every I + A_i with ‖A_i‖ < 1 has a positive determinant.",
    ),
    Claim(
        "Theorem 2.2",
        "For τ < 1, every critical point with |||A||| ≤ τ is a global minimum.",
        f"{PAPER}, Theorem 2.2",
    ),
    Claim(
        "Equation 2.3 [ICLR 2017]",
        "‖∇f‖² ≥ 4l (1−τ)^{l−1} σ_min(Σ)² (f − C) in B_τ.",
        f"{PAPER}, eq. (2.3) as printed at ICLR 2017",
        "False as printed: the exponent is that of the un-squared bound, and ‖E‖² ≥ f − C needs"
        " ‖Σ‖ ≤ 1.",
    ),
    Claim(
        "Equation 2.3 [v3]",
        "‖∇f‖² ≥ 4l (1−τ)^{2l−2} σ_min(Σ)² (f − C) in B_τ.",
        f"{PAPER}, eq. (2.3) as printed in arXiv v3",
        "False as printed: ‖E‖² ≥ f − C needs ‖Σ‖ ≤ 1. Both sides scale differently with the data.",
    ),
    Claim(
        "Equation 2.3, corrected",
        "‖∇f‖² ≥ 4l (1−τ)^{2l−2} σ_min(Σ) (f − C) in B_τ, with equality at A_i = −τI, Σ = sI.",
        "this project; the proof is in identity_matters/linear/landscape.py",
    ),
    Claim(
        "Section 1.1: the origin",
        "All-zero weights are always a bad critical point of a standard linear net, with a zero"
        " Hessian from three layers on, and never one of a residual net unless R = I.",
        f"{PAPER}, section 1.1; Kawaguchi 2016 (arXiv 1605.07110) for the Hessian",
    ),
    Claim(
        "Section 1.1: training at depth",
        "Gradient descent from near-zero weights trains linear residual nets at any depth, to 1202"
        " layers and beyond, with its iterates inside B_τ; standard nets of the same depth do not"
        " move.",
        f"{PAPER}, sections 1.1 and 2; He et al. 2015 for the 1202 layers",
        "The verdict asks for iterates inside the unit ball where Theorem 2.1's bound is below 1"
        " (one layer must leave it if ‖R − I‖ > 1), and for standard nets that do not move from"
        " eight layers on.",
    ),
    Claim(
        "Theorem 2.2 without det R > 0",
        "If det R < 0 there is no critical point in B_τ at all, so gradient descent cannot reach"
        " the optimum inside.",
        "this project, from Theorem 2.2 and the sign of the determinant",
    ),
    Claim(
        "Landscape is not dynamics",
        "Gradient descent from zero stalls at the squares of the negative eigenvalues of a"
        " symmetric R, even where det R > 0 and a small-norm optimum exists; fixed input and output"
        " maps, or a last layer at −I, cure it.",
        "Bartlett, Helmbold & Long 2018 (arXiv 1802.06093); Zou, Long & Gu 2020 (arXiv 2003.01094);"
        " Wu, Wang & Ma 2019 (arXiv 1911.00645)",
    ),
    Claim(
        "Lemma 2.4: the cost of a gradient",
        "The gradients of all layers together cost 3l matrix products: the time of an exact step is"
        " linear in depth and at most twice that of a plain chain of as many products.",
        "this project, from Lemma 2.4",
        "As printed the lemma has the transposed factors in the reverse order.",
    ),
    Claim(
        "Theorem 3.2",
        "A ReLU residual network with O(n log n + r²) parameters maps any n distinct inputs to any"
        " labels out of r.",
        f"{PAPER}, Theorem 3.2 and appendix B",
        "The printed width 10 log n / ρ² is far above the sample size on real images; the adaptive"
        " construction of this project needs a fixed small width. Lemma B.1 is false as printed:"
        " the proof needs ‖a_i − a_j‖² ≥ 6ρ′.",
    ),
    Claim(
        "Theorem 3.2: the cost of the construction",
        "Building a network for n points takes about one n x n x k product, running it two.",
        "this project",
    ),
    Claim(
        "Table 2, CIFAR-10",
        "The all-convolutional residual net without batch norm reaches 6.38 % test error.",
        f"{PAPER}, section 4, Table 2",
        "Possibly the best step rather than the last.",
    ),
    Claim(
        "Table 2, CIFAR-100",
        "The same net reaches 24.64 % test error on CIFAR-100.",
        f"{PAPER}, section 4, Table 2",
    ),
    Claim(
        "Table 2, ImageNet",
        "An all-convolutional residual net reaches 35.29 % top-1 and 14.17 % top-5 error.",
        f"{PAPER}, section 4, Table 2",
        "35.7M parameters do not follow from the 34-layer net with 3x3 blocks, which has 21.1M.",
    ),
)

CLAIMS = {claim.key: claim for claim in _CLAIMS}


def _error(value: float, place: str, note: str = "") -> Number:
    return Number(value, "percent of test examples, top-1 unless said", place, note)


_STITCHED = "Table 2 takes its comparison rows from different models and test protocols."

# Rows of Table 2: method -> data set -> published error.
TABLE_2 = {
    "All-CNN": {
        "cifar10": _error(7.25, "Table 2", "Springenberg et al. 2014, All-CNN-C with augmentation"),
        "cifar100": _error(
            32.39, "Table 2", "All-CNN's own paper is remembered to say 33.71: unverified"
        ),
        "imagenet": _error(41.2, "Table 2", "Springenberg et al. 2014, All-CNN-B, centre crop"),
    },
    "this paper": {
        "cifar10": _error(6.38, "Table 2", "possibly the best step over training"),
        "cifar100": _error(24.64, "Table 2"),
        "imagenet": _error(35.29, "Table 2", "top-5: 14.17"),
    },
    "ResNet": {
        "cifar10": _error(6.43, "Table 2", f"ResNet-110, the best of five runs. {_STITCHED}"),
        "cifar100": _error(25.16, "Table 2", "ResNet-164, not ResNet-110"),
        "imagenet": _error(19.38, "Table 2", "below ResNet-152 at ten crops: multi-scale testing"),
    },
    "DenseNet": {
        "cifar10": _error(3.74, "Table 2", "L=100, k=24, plain, 27.2M parameters"),
        "cifar100": _error(19.25, "Table 2", "L=100, k=24, plain, 27.2M parameters"),
    },
}

NUMBERS = {
    "imagenet_top5_error_percent": Number(14.17, "percent", "Table 2 and section 4"),
    "resnet34_imagenet_error_percent": Number(25.03, "percent", "section 4", "quoted from He 2015"),
    "krizhevsky_imagenet_error_percent": Number(40.7, "percent", "section 4", "quoted"),
    "cifar_parameters_table": Number(13.5e6, "parameters", "Table 1"),
    "cifar_parameters_text": Number(
        13.59e6, "parameters", "section 4", "matches no reading of Table 1; Table 1 has 13,538,736"
    ),
    "imagenet_parameters": Number(
        35.7e6, "parameters", "section 4", "(5,5,6,6) blocks with a 7x7 stem have 35,693,760"
    ),
    "deepest_residual_net_layers": Number(
        1202, "layers", "section 1.1", "He et al. 2015, trained with no optimization difficulty"
    ),
    "cifar_train_hours_k40": Number(24, "hours on one Tesla K40", "section 4"),
    "expressivity_width_constant": Number(
        10, "k = c log n / rho^2", "Theorem 3.2", "the proof says that c = 10 works"
    ),
}
