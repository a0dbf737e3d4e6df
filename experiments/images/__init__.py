"""Experiments that train on images: `cifar`, `imagenet` and `ablations` (section 4, Table 2).

`train` builds a training and its data from settings; `log` writes its records and progress.
"""
