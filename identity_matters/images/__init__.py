"""Data sets: whole splits in memory (`datasets`), and ImageNet as a stream (`imagenet`).

`augment` makes the network's inputs of examples. `miniature` writes small ImageNets for tests,
benchmarks and a first try.
"""
