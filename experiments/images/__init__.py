"""Experiments that train on images (section 4, Table 2), and what they share: `train`
and `log`.
"""
