"""Experiments that train on images (section 4, Table 2), and what they share.

`settings` are turned into images by `data` and into a training by `train`; `verdicts`
judges its records.
"""
