"""Training of image classifiers; read `loop`, then `step`, then `parallel`.

`step` defines one update and its metrics, `parallel` runs steps on many devices, `checkpoint` keeps
the state on disk, and `multihost` joins processes. `train` and `predict` are for your own arrays.
"""

from identity_matters.train.arrays import predict, save_variables, train
from identity_matters.train.checkpoint import load_variables

__all__ = ["load_variables", "predict", "save_variables", "train"]
