"""Training of image classifiers, and trained nets.

For your own arrays: `train` returns a `TrainedNet`, which predicts, evaluates and saves
itself, and `load` reads one back, also from the checkpoints of an experiment, and a net
that this package contains by its name. `save_variables` and `load_variables` keep
variables alone.

`arrays` is the training of your own arrays, and `trained_net` what comes out of it. To
see how a training works, read `loop`, then `step`, then `parallel`. `intervals` says
when what happens, `step` defines one update, `parallel` runs steps on many devices,
`records` makes records of their sums, and `checkpoint` keeps the state: its arrays and
metadata lie in `checkpoint_storage`, and `digests` shows whether a byte of them was
changed. `trees` and `net_source` put variables and nets into a form that can be kept,
`progress` shows how far a training is, `multihost` joins processes, and
`program_shapes` describes a training's programs, to compile them elsewhere.
"""

from identity_matters.train.arrays import train
from identity_matters.train.checkpoint import load_variables, save_variables
from identity_matters.train.checkpoint_storage import CheckpointError
from identity_matters.train.records import NonFiniteError
from identity_matters.train.trained_net import TrainedNet, load, shipped_nets

__all__ = [
    "CheckpointError",
    "NonFiniteError",
    "TrainedNet",
    "load",
    "load_variables",
    "save_variables",
    "shipped_nets",
    "train",
]
