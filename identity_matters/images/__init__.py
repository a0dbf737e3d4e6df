"""Data sets: whole splits in memory (`datasets`), and ImageNet as a stream (`imagenet`).

`augment` turns images into inputs of a network; `miniature` writes small ImageNets for tests.
"""
