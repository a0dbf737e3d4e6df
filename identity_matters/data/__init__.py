"""Data sets: what they are (`sources`), whole splits in memory (`arrays`), and how to get them.

`batches` says which examples a training step takes, `augment` makes the network's inputs of them.
`imagenet` streams what fits no memory: `jpeg` decodes and crops, `stream` makes batches ahead,
`resize` writes smaller copies, `miniature` writes small ones for tests and benchmarks.
`prepare` downloads and decodes; nothing else needs a network or TensorFlow.
"""
