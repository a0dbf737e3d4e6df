"""The errata's counterexamples: a second way for each, and the same numbers as the runs have."""

import fractions
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from identity_matters import paper, records
from identity_matters.linear import risk
from identity_matters.report import errata

REFERENCE = pathlib.Path(__file__).resolve().parent.parent / "results" / "reference"
ERRATA = {erratum.place: erratum for erratum in errata.errata()}
EXAMPLES = {place: dict(erratum.example) for place, erratum in ERRATA.items()}


@pytest.mark.parametrize(
    ("place", "form", "prefix"),
    [
        ("Eq. (2.3), ICLR 2017", "iclr2017", "smallest_"),
        ("Eq. (2.3), ICLR 2017, at Σ = 1", "iclr2017", "smallest_with_sigma_1_"),
        ("Eq. (2.3), arXiv v3", "v3", "smallest_"),
    ],
)
def test_the_gradient_bounds_counterexamples_are_those_of_the_runs(place, form, prefix):
    run = records.read_run(REFERENCE / "gradient_bound" / form / "seed=0")
    example = EXAMPLES[place]
    right, left = map(fractions.Fraction, example["right-hand side as printed"].split(" > "))
    assert right > left == fractions.Fraction(example["‖∇f‖² = Σ_i (2EΣ Π_{j≠i} (1 + A_j))²"])
    assert float(right) == run.summary["metrics"][f"{prefix}right_hand_side"]
    assert float(left) == run.summary["metrics"][f"{prefix}squared_gradient"]
    assert left >= fractions.Fraction(example["right-hand side, corrected"])


@pytest.mark.parametrize("place", [place for place in ERRATA if place.startswith("Eq.")])
def test_the_gradient_bounds_counterexamples_by_automatic_differentiation(place):
    example = EXAMPLES[place]
    R, Sigma = (float(re.search(rf"{name} = (\d+)", example["take"])[1]) for name in ("R", "Σ"))
    layers = example["layers A_i"].split(", so")[0].replace("−", "-").split(", ")
    A = jnp.array([[[float(fractions.Fraction(layer))]] for layer in layers])
    arguments = (jnp.array([[R]]), jnp.array([[Sigma]]))
    value, gradient = jax.value_and_grad(risk.excess_risk)(A, *arguments)
    assert float(value) == fractions.Fraction(example["f − C = E²Σ"])
    squared = example["‖∇f‖² = Σ_i (2EΣ Π_{j≠i} (1 + A_j))²"]
    assert float(jnp.sum(gradient**2)) == fractions.Fraction(squared)


def test_the_order_of_factors_by_automatic_differentiation():
    A = jnp.array([[[0.0, 0], [0, 0]], [[0, 1], [0, 0]], [[0, 0], [1, 0]]])
    gradient = jax.grad(risk.excess_risk)(A, jnp.zeros((2, 2)), jnp.eye(2))
    example = EXAMPLES["Lemma 2.4"]
    assert float(gradient[0, 0, 0]) == float(example["entry (1, 1), corrected"]) == 4
    assert example["its derivative by that entry"].endswith(" = 4")
    assert example["entry (1, 1) as printed"] == "6"


def test_lemma_b_1s_block_misses_its_target():
    """The block of Lemma B.1 at the counterexample, evaluated."""
    rho, a = 0.25, np.array([[1, 0.5], [1, -0.5]])
    b = np.array([[0.0, 1.0], [0.0, -1.0]])
    bias = 1 - 2 * rho
    assert np.all(np.sum(a**2, axis=1) == 1 + rho)
    assert 3 * rho <= np.sum((a[0] - a[1]) ** 2) < 6 * rho
    out = a[1].copy()
    for i in range(2):
        out += (b[i] - a[i]) / (a[i] @ a[i] - bias) * max(a[i] @ a[1] - bias, 0)
    np.testing.assert_allclose(out, b[1] + (b[0] - a[0]) / 3)
    assert EXAMPLES["Lemma B.1"]["so the block sends a_2 not to b_2 but to"] == (
        "b_2 + 1/3 (b_1 − a_1)"
    )


def test_without_a_positive_determinant_the_bound_promises_the_impossible():
    example = EXAMPLES["Theorem 2.1, ICLR 2017"]
    # 2 pi / 7 is below 1, 2 pi / 6 is not.
    assert example["the bound at l = 7"] == "2π/7 = 0.8976 < 1"
    assert paper.theorem_2_1_bound_iclr2017(0.0, 6) > 1


def test_parameter_counts_are_those_of_the_nets():
    """tests/test_registry.py and tests/test_interface.py count the nets themselves."""
    assert EXAMPLES["Section 4, the CIFAR net"]["sum"].startswith("13,538,736, ")
    values = list(EXAMPLES["Section 4, the ImageNet net"].values())
    assert values == [
        "21,095,616 weights in 33 convolutions",
        "35,693,760 weights in 45 convolutions",
    ]
