"""What is wrong in print, each with numbers that can be checked by hand: all of them computed.

Nothing here comes from a run. All arithmetic is in whole numbers and fractions, but for one bound
with a pi in it.
"""

import dataclasses
import fractions
import math

import numpy as np

from identity_matters import paper
from identity_matters.linear import bound_search

_LATTICE = {"max_depth": 3, "max_integer": 4}


@dataclasses.dataclass(frozen=True)
class Erratum:
    """An error in print.

    Attributes:
      place: where it stands.
      printed, corrected: formulas in LaTeX.
      why: what is wrong.
      example: names and values of the counterexample, in the order in which to check them.
    """

    place: str
    printed: str
    corrected: str
    why: str
    example: tuple[tuple[str, str], ...]


def errata() -> list[Erratum]:
    """All errata, in the order of the paper."""
    return [
        _determinant(),
        _gradient_bound(
            "iclr2017",
            "Eq. (2.3), ICLR 2017",
            2,
            "σ_min(Σ) has the wrong power: with Σ replaced by sΣ the left side grows as s², the"
            " right as s³.",
        ),
        _gradient_bound(
            "iclr2017",
            "Eq. (2.3), ICLR 2017, at Σ = 1",
            1,
            "The exponent of 1 − τ is that of the bound before squaring, so it fails even where the"
            " data have unit variance.",
        ),
        _gradient_bound(
            "v3",
            "Eq. (2.3), arXiv v3",
            2,
            "The exponent is mended, σ_min(Σ) still has the wrong power.",
        ),
        _order_of_factors(),
        _lemma_b_1(),
        *_parameter_counts(),
    ]


def _determinant() -> Erratum:
    gamma = 0.0
    depth = 1
    while paper.theorem_2_1_bound_iclr2017(gamma, depth) >= 1:
        depth += 1
    bound = paper.theorem_2_1_bound_iclr2017(gamma, depth)
    return Erratum(
        "Theorem 2.1, ICLR 2017",
        r"|||A|||\le\frac{2(\sqrt{\pi}+\sqrt{3\gamma})^2}{l}\quad\text{for any }R",
        r"\text{the same, for }\det R>0",
        "Where |||A||| < 1 every factor I + A_i has a positive determinant; so has the product.",
        (
            ("take", "d = 1, R = −1, so that γ = |log 1| = 0"),
            (f"the bound at l = {depth}", f"2π/{depth} = {bound:.4f} < 1"),
            ("then every factor 1 + A_i is at least", f"1 − {bound:.4f} = {1 - bound:.4f} > 0"),
            ("and the product cannot be", "−1"),
        ),
    )


_BOUNDS = {
    "iclr2017": r"\lVert\nabla f\rVert^2\ge 4l\,(1-\tau)^{l-1}\,\sigma_{\min}(\Sigma)^2\,(f-C)",
    "v3": r"\lVert\nabla f\rVert^2\ge 4l\,(1-\tau)^{2l-2}\,\sigma_{\min}(\Sigma)^2\,(f-C)",
    "corrected": r"\lVert\nabla f\rVert^2\ge 4l\,(1-\tau)^{2l-2}\,\sigma_{\min}(\Sigma)\,(f-C)",
}


def _signed(value) -> str:
    return str(value).replace("-", "−")


def _gradient_bound(form: str, place: str, max_sigma: int, why: str) -> Erratum:
    point = bound_search.smallest_scalar_counterexample(form, **_LATTICE, max_sigma=max_sigma)
    if point is None:
        raise ValueError(f"no point of the lattice {_LATTICE} violates the form {form!r}")
    right = bound_search.scalar_point(point.a, point.R, point.Sigma, "corrected").right
    product = math.prod((1 + a for a in point.a), start=fractions.Fraction(1))
    error = product - point.R
    tau = max(abs(a) for a in point.a)
    return Erratum(
        place,
        _BOUNDS[form],
        _BOUNDS["corrected"],
        why,
        (
            ("take", f"d = 1, l = {len(point.a)}, R = {point.R}, Σ = {point.Sigma}"),
            ("layers A_i", ", ".join(map(_signed, point.a)) + f", so that τ = {tau}"),
            ("E = (1 + A_l)⋯(1 + A_1) − R", f"{product} − {point.R} = {_signed(error)}"),
            ("f − C = E²Σ", str(error**2 * point.Sigma)),
            ("‖∇f‖² = Σ_i (2EΣ Π_{j≠i} (1 + A_j))²", str(point.squared_gradient)),
            ("right-hand side as printed", f"{point.right} > {point.squared_gradient}"),
            ("right-hand side, corrected", str(right)),
        ),
    )


def _matrix(matrix: np.ndarray) -> str:
    return "[" + "; ".join(" ".join(map(str, row)) for row in matrix.tolist()) + "]"


def _order_of_factors() -> Erratum:
    second, third = np.array([[1, 1], [0, 1]]), np.array([[1, 0], [1, 1]])
    identity, target = np.eye(2, dtype=int), np.zeros((2, 2), dtype=int)
    error = third @ second - target
    corrected = 2 * second.T @ third.T @ error
    printed = 2 * third.T @ second.T @ error

    def excess(entry: int) -> int:
        first = identity.copy()
        first[0, 0] += entry
        return int(np.sum((third @ second @ first - target) ** 2))

    # The risk is quadratic in one layer, so that its central difference is its derivative.
    slope = fractions.Fraction(excess(1) - excess(-1), 2)
    return Erratum(
        "Lemma 2.4",
        r"\frac{\partial f}{\partial A_i}=2\,(I+A_l^{\top})\cdots(I+A_{i+1}^{\top})\,E\,\Sigma\,"
        r"(I+A_{i-1}^{\top})\cdots(I+A_1^{\top})",
        paper.FORMULAS["Lemma 2.4: the cost of a gradient"][0],
        "The transposed factors stand in the reverse order on both sides.",
        (
            ("take", "d = 2, l = 3, i = 1, R = 0, Σ = I, A_1 = 0"),
            ("I + A_2", _matrix(second)),
            ("I + A_3", _matrix(third)),
            ("E = (I + A_3)(I + A_2)", _matrix(error)),
            ("f − C with ±1 added to entry (1, 1) of A_1", f"{excess(1)} and {excess(-1)}"),
            ("its derivative by that entry", f"({excess(1)} − {excess(-1)})/2 = {slope}"),
            ("entry (1, 1) as printed", str(printed[0, 0])),
            ("entry (1, 1), corrected", str(corrected[0, 0])),
        ),
    )


def _lemma_b_1() -> Erratum:
    rho = fractions.Fraction(1, 4)
    half = fractions.Fraction(1, 2)
    one = fractions.Fraction(1)
    a, other = (one, half), (one, -half)
    squared_norm, inner = (sum(x * y for x, y in zip(a, b, strict=True)) for b in (a, other))
    distance = 2 * (squared_norm - inner)
    fires = inner - (1 - 2 * rho)
    share = fires / (squared_norm - (1 - 2 * rho))
    return Erratum(
        "Lemma B.1",
        r"\lVert a_i-a_j\rVert\ge 3\rho'",
        r"\lVert a_i-a_j\rVert^2\ge 6\rho'",
        "Unit i must not fire on a_j, that is ⟨a_i, a_j⟩ ≤ 1 − 2ρ′. With ‖a_i‖², ‖a_j‖² ≤ 1 + ρ′"
        " this follows from ‖a_i − a_j‖² ≥ 6ρ′; 3ρ′ is too little, with the square and without it.",
        (
            ("take", f"ρ′ = {rho}, a_1 = (1, {half}), a_2 = (1, −{half})"),
            ("‖a_1‖² = ‖a_2‖²", f"{squared_norm}, which is 1 + ρ′"),
            ("‖a_1 − a_2‖ and its square", f"{distance}, which is at least 3ρ′ = {3 * rho}"),
            ("unit 1 at a_2: ⟨a_1, a_2⟩ − (1 − 2ρ′)", f"{inner} − {1 - 2 * rho} = {fires} > 0"),
            ("so the block sends a_2 not to b_2 but to", f"b_2 + {share} (b_1 − a_1)"),
            ("needed: 6ρ′", f"{6 * rho} > {distance}"),
        ),
    )


def _convolution_weights(kernel: int, channels: list[tuple[int, int]]) -> int:
    return sum(kernel**2 * inputs * outputs for inputs, outputs in channels)


def _stages(inputs: int, stages: dict[int, int]) -> list[tuple[int, int]]:
    """(channels in, channels out) of each convolution: width -> blocks of two convolutions."""
    channels = []
    for width, blocks in stages.items():
        channels += [(inputs, width)] + [(width, width)] * (2 * blocks - 1)
        inputs = width
    return channels


def _parameter_counts() -> list[Erratum]:
    text = round(paper.NUMBERS["cifar_parameters_text"].value)
    stages = dict.fromkeys((64, 128, 256), 9)
    parts = {16: _convolution_weights(3, [(3, 16)])}
    before = 16
    for width, blocks in stages.items():
        parts[width] = _convolution_weights(3, _stages(before, {width: blocks}))
        before = width
    cifar = Erratum(
        "Section 4, the CIFAR net",
        rf"\text{{{text / 1e6:.2f} million trainable parameters}}",
        f"{sum(parts.values()):,}".replace(",", "{,}"),
        "Table 1 rounds its count correctly to 13.5 million; the text matches no reading of it.",
        (
            ("3 x 3 x 3 x 16", f"{parts[16]:,}"),
            *(
                (
                    f"9 blocks of width {width}, 9 ({first} · {width} + 17 · {width}²)",
                    f"{parts[width]:,}",
                )
                for first, width in ((16, 64), (64, 128), (128, 256))
            ),
            ("sum", f"{sum(parts.values()):,}, the text says {text:,}"),
        ),
    )
    quoted = paper.NUMBERS["imagenet_parameters"].value
    counts = {
        blocks: _convolution_weights(7, [(3, 64)])
        + _convolution_weights(3, _stages(64, dict(zip((64, 128, 256, 512), blocks, strict=True))))
        for blocks in ((3, 4, 6, 3), (5, 5, 6, 6))
    }
    thirty_four = (3, 4, 6, 3)
    imagenet = Erratum(
        "Section 4, the ImageNet net",
        rf"\text{{a variant of the 34-layer net, {quoted / 1e6:.1f} million parameters}}",
        r"\text{the 34-layer net has blocks (3, 4, 6, 3)}",
        "Blocks of two 3 x 3 convolutions behind a 7 x 7 stem do not give this count at 34 layers.",
        tuple(
            (
                f"blocks {blocks}" + (", the 34-layer net" if blocks == thirty_four else ""),
                f"{count:,} weights in {1 + 2 * sum(blocks)} convolutions",
            )
            for blocks, count in counts.items()
        ),
    )
    return [cifar, imagenet]
