"""What the paper and its neighbours print, as data. Nothing else in the project repeats it.

The paper: M. Hardt and T. Ma, "Identity Matters in Deep Learning", arXiv 1611.04231. Where its
versions differ, "ICLR 2017" is the conference text and "v3" the arXiv text of July 2018.
Every entry names its place in the paper. Errors in print are kept as printed; `note` says what is
wrong with them, and the experiments measure it.
"""

from identity_matters.paper.bounds import (
    gradient_bound_iclr2017,
    gradient_bound_v3,
    theorem_2_1_bound_iclr2017,
    theorem_2_1_bound_psd,
    theorem_2_1_bound_v3,
    theorem_2_1_least_depth,
    theorem_3_2_order,
    theorem_3_2_width,
    vardi_2021_order,
    yun_2019_order,
)
from identity_matters.paper.claims import CLAIMS, PAPER, Claim
from identity_matters.paper.formulas import FORMULAS
from identity_matters.paper.numbers import ARXIV, NUMBERS, TABLE_2, Number

__all__ = [
    "ARXIV",
    "CLAIMS",
    "FORMULAS",
    "NUMBERS",
    "PAPER",
    "TABLE_2",
    "Claim",
    "Number",
    "gradient_bound_iclr2017",
    "gradient_bound_v3",
    "theorem_2_1_bound_iclr2017",
    "theorem_2_1_bound_psd",
    "theorem_2_1_bound_v3",
    "theorem_2_1_least_depth",
    "theorem_3_2_order",
    "theorem_3_2_width",
    "vardi_2021_order",
    "yun_2019_order",
]
