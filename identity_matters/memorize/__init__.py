"""Finite-sample expressivity: a residual net that memorises any labels (section 3).

Symbols: n examples in d dimensions with r classes; width k; l = ceil(n / k) blocks; the
data after the input map are a_i = A_0 x_i, the surrogate label of class j is q_j, and a
block is h + T(h) with T(h) = V ReLU(U h + s). Proofs (E1 to E15):
docs/theory/memorize.md.

* `network`: a residual block, the forward pass of the network, and its parameter count.
* `plan`: what is decided before the weights are solved for; `rounding`: what a
  precision does to numbers and sums.
* `gaussian`: the random numbers of the input map.
* `input_map`: A_0 x without rounding, the same to the bit in every order of summation.
* `construct`: `memorize` builds the network, `apply` and `verify` run it.
* `adaptive`: biases and order from the data; in exact arithmetic it fits any distinct
  inputs.
* `paper_method`: Lemmas B.1 and B.2 with a bias for each unit; they ask more of the
  data.
* `certificate`: the margins, and a proved bound on what rounding does to them.
* `descent`: for contrast, a network of the same shape, trained by gradient descent.
* `examples`: checks of the examples, the key, the precision and the memory.
* `few_numbers`: fewer parameters than examples, as one number holds several labels;
  `hashing` finds their places in it.
* `retrieval`: fewer still, near what counting allows; `peeling` fills its table of
  digits.
* `machine`: how blocks compute with whole numbers, as both of these do;
  `digit_reader`: how they read a digit of a word; `exact_arithmetic`: where float64 is
  without rounding; `whole_numbers`: what else they share.

Import the names below from here, and everything else from its module.
"""

from typing import TYPE_CHECKING

from identity_matters.lazy_names import module_getattr

if TYPE_CHECKING:
    from identity_matters.memorize.certificate import Certificate, PrecisionError
    from identity_matters.memorize.construct import (
        Memorized,
        Verification,
        apply,
        memorize,
        verify,
    )
    from identity_matters.memorize.examples import ConflictingLabelsError
    from identity_matters.memorize.few_numbers import (
        memorize_with_few_numbers,
    )
    from identity_matters.memorize.network import Network, forward, network_parameters
    from identity_matters.memorize.paper_method import AssumptionError, separation
    from identity_matters.memorize.retrieval import memorize_by_retrieval

__all__ = [
    "AssumptionError",
    "Certificate",
    "ConflictingLabelsError",
    "Memorized",
    "Network",
    "PrecisionError",
    "Verification",
    "apply",
    "forward",
    "memorize",
    "memorize_by_retrieval",
    "memorize_with_few_numbers",
    "network_parameters",
    "separation",
    "verify",
]

# For type checkers the names are imported above. At run time a module is imported when
# a name of it is first used.
if not TYPE_CHECKING:
    __getattr__ = module_getattr(
        __name__,
        {
            "AssumptionError": "paper_method",
            "Certificate": "certificate",
            "ConflictingLabelsError": "examples",
            "Memorized": "construct",
            "Network": "network",
            "PrecisionError": "certificate",
            "Verification": "construct",
            "apply": "construct",
            "forward": "network",
            "memorize": "construct",
            "memorize_by_retrieval": "retrieval",
            "memorize_with_few_numbers": "few_numbers",
            "network_parameters": "network",
            "separation": "paper_method",
            "verify": "construct",
        },
    )

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
