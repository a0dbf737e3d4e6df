"""ReLU nets: the kinds of trials of `experiments.relu`, and what measures each.

Each measurement takes a trial of a type of its own, which lists the settings that it
reads, and a key; `experiments.relu` has their values. `relu_nets` explains the batches
of nets and problems, and the letters.
"""

import dataclasses

from experiments.measurements import (
    relu_bad_points,
    relu_gradient,
    relu_noise,
    relu_search,
    relu_training,
)
from experiments.run.trials import Kind, only
from identity_matters.relu.problems import Setting

_KINDS = {
    "at_origin": Kind(relu_bad_points.OriginTrial, relu_bad_points.at_origin),
    "dead": Kind(relu_bad_points.DeadTrial, relu_bad_points.dead),
    "search": Kind(relu_search.SearchTrial, relu_search.search),
    "linear_control": Kind(relu_search.ControlTrial, relu_search.linear_control),
    "gradient_ratio": Kind(relu_gradient.RatioTrial, relu_gradient.gradient_ratio),
    "noise": Kind(relu_noise.NoiseTrial, relu_noise.noise),
    "training": Kind(relu_training.TrainingTrial, relu_training.flow_and_promises),
}
MEASURES = {name: kind.measure for name, kind in _KINDS.items()}


def build(*, measured: str, **settings) -> tuple:
    """What the measurement of this kind reads.

    Its field `setting`, if there is one, is a `Setting`, made of the settings that have
    the names of its fields.

    Raises:
      ValueError: a setting cannot be used.
    """
    if measured == "dead":
        relu_bad_points.check_dead(**settings)
    if measured == "training":
        relu_training.check(**settings)
    kind = _KINDS[measured]
    if "setting" in kind.trial_type._fields:
        of_problems = [field.name for field in dataclasses.fields(Setting)]
        settings["setting"] = Setting(**only(settings, of_problems))
    return kind.make_trial(settings)
