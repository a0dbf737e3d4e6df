"""Training of image classifiers; read `loop`, then `step`, then `parallel`.

`loop.fit` restores, steps, logs, evaluates and saves. `step` defines one update and the metrics it
records, and `parallel` runs steps on many devices. `checkpoint` keeps the state on disk, and
`multihost` coordinates several processes. `train` and `predict` do all of it for your own arrays.
"""

from identity_matters.train.arrays import predict, save_variables, train
from identity_matters.train.checkpoint import load_variables

__all__ = ["load_variables", "predict", "save_variables", "train"]
