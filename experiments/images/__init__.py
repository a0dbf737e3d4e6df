"""Trainings on images: section 4 and Table 2. `cifar`, `imagenet` and `ablations` are experiments.

`train` turns settings into trainings and their examples; `log` is what a training writes.
"""
