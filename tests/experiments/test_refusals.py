"""Settings that cannot be used are refused before anything runs."""

import importlib

import pytest

import experiments
from experiments import (
    convergence,
    deep_mlp,
    factorization,
    gradient_bound,
    landscape,
    linear_training,
    memorize,
    relu,
)
from identity_matters import runs
from tests import forked
from tests.measured import build_all

# Experiment -> variant -> the message -> settings that are refused with it.
REFUSED = {
    convergence: {
        "inside": {
            r"shares must be \(low, high\), 0 < low <= high < 1, got \(0.5, 1.0\)": {
                "shares": (0.5, 1.0)
            },
            r"shares must be \(low, high\), 0 < low <= high < 1, got \(0.5,\)": {
                "shares": (0.5,)
            },
        },
        "escape": {
            "need 0 < risk < sigma r.2, got r = -0.5, sigma = 1.0, risk = 1.0": {
                "risk": 1.0
            },
            "largest_factor must be above 1, got 1.0": {"largest_factor": 1.0},
            "noises must be between 0 and 0.333.*0.4": {"noises": (0.4,)},
            "targets must hold at least one value": {"targets": ((),)},
        },
    },
    deep_mlp: {
        "digits/relu": {
            "train.step_count must be a multiple of train.pilot_steps": {
                "train.step_count": 7
            },
            "a net of 2 layers needs a square": {"model.width": 32},
            "there is no data set 'mnist'": {"data.dataset": "mnist"},
        },
    },
    factorization: {
        "unitary": {
            "variant must be one of .*, got 'unitary'": {},
        },
        "random": {
            "ascents must be above -1, got -1": {"ascents": -1},
            r"must be polar, which always applies, and others of .*, got .*, 'qr'\)": {
                "large_methods": ("polar", "qr")
            },
            r"must be polar, which always applies, .*, got \('psd',\)": {
                "large_methods": ("psd",)
            },
            "only the variant file reads a file": {"file": "R.npy"},
            "these settings leave nothing to measure": {"strengths": ()},
        },
        "ill_conditioned": {
            "the condition number must be at least 1, got 0.5": {"strengths": (0.5,)},
        },
    },
    gradient_bound: {
        "v3": {
            "^max_tau must be between 0 and 1, got 1.0": {"max_tau": 1.0},
            r"log10 \|\|Sigma\|\| needs \(low, high\), got \(1.0, 0.0\)": {
                "sigma_norm_log10": (1.0, 0.0)
            },
            r"random.depth_caps must increase, got \(4, 2\)": {
                "random.depth_caps": (4, 2)
            },
            r"each of sizes must be \(width, depth\), got \(2,\)": {
                "search.sizes": ((2,),)
            },
        },
        "corrected": {
            "a singular Sigma that is not 0 needs width at least 2, got 1": {
                "singular.widths": (1, 2)
            },
        },
    },
    landscape: {
        "hessian_at_origin": {
            "target_sizes must be from 0 to 100, got": {"target_sizes": (800.0,)},
        },
        "negative_determinant": {
            r"taus must be between 0 and 1, got \(0.5, 2.0\)": {"taus": (0.5, 2.0)},
        },
    },
    linear_training: {
        "depth": {
            "is shorter than": {"gammas": (0.5,)},
            "Sigma must be 6 x 6 like the columns of R": {
                "sigma_eigenvalues": (1.0, 2.0)
            },
        },
        "noise": {
            "descent.max_updates must be above 0, got -1": {"descent.max_updates": -1},
        },
        "stuck_targets": {
            "depth must be at least 3 for a drift by a power law, got 2": {"depth": 2},
        },
    },
    memorize: {
        "few_numbers_trade": {
            "least_hash_chance must be between 0 and 1, got 1.0": {
                "few_numbers.least_hash_chance": 1.0
            },
            "word_bits must be at most 53, got 54": {"few_numbers.word_bits": (54,)},
            "width must be at least 6, got 5": {"few_numbers.widths": (5,)},
        },
        "synthetic": {
            "features must be at least 2": {"fit.features": 1},
        },
    },
    relu: {
        "origin": {
            r"each of nets must be \(depth, width, lifted_width, bias\), got": {
                "nets": ((1, 2, 2),)
            },
        },
        "dead_units": {
            "laws must be among .*, got 'uniform'": {"laws": ("uniform",)},
            "d of nets must be 1 or 2, got 3": {"nets": ((1, 1, 3),)},
        },
        "search": {
            "lifted_width must be at least width_in, got 1 < 2": {
                "nets": ((1, 1, 1, False, 8),)
            },
            "teacher_norm must be between 0 and 1, got 1.5": {"teacher_norm": 1.5},
        },
        "training": {
            "errors must be among .*, got 'even'": {"errors": ("even",)},
            "nets need at most 2 d examples, .*, got 17 > 16": {"nets": ((17, 8),)},
        },
    },
}
CASES = [
    pytest.param(module, variant, changes, message, id=f"{variant}-{message}")
    for module, variants in REFUSED.items()
    for variant, refusals in variants.items()
    for message, changes in refusals.items()
]


@pytest.mark.parametrize(("module", "variant", "changes", "message"), CASES)
def test_settings_that_cannot_be_used_are_refused_before_a_run(
    module, variant, changes, message
):
    with pytest.raises(ValueError, match=message):
        build_all(module, variant, **changes)


BENCHMARKS = [
    f"benchmarks.{path.stem}"
    for path in sorted((forked.ROOT / "benchmarks").glob("*.py"))
    if "\nEXPERIMENT = " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", [*experiments.MODULES.values(), *BENCHMARKS])
def test_what_may_be_zero_or_negative_is_a_setting(module):
    """Fields of trials, which are computed, would have no effect there."""
    experiment = importlib.import_module(module).EXPERIMENT
    names = set()
    for kind in experiments.KINDS:
        for variant in getattr(experiment.settings_module, kind, ()):
            settings = runs.flat(experiment.settings_of(variant))
            names |= {name.split(".")[-1] for name in settings}
    assert set(experiment.signed) <= names
