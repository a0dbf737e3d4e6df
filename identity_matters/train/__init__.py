"""Training of image classifiers, read forward: loop -> step -> parallel.

`loop.fit` restores, steps, logs, evaluates and saves; `step` says what one update computes, by what
rule, and what is recorded of it, and `parallel` runs it on many devices. `checkpoint` keeps the
state on disk, and `multihost` knows of several processes. `train` and `predict` do it all for
arrays of your own.
"""

from identity_matters.train.arrays import predict, save_variables, train
from identity_matters.train.checkpoint import load_variables

__all__ = ["load_variables", "predict", "save_variables", "train"]
