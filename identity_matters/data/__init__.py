"""Data sets: what they are (`sources`), whole splits in memory (`arrays`), and how to get them.

`batches` says which examples a training step takes, `augment` makes the network's inputs of them.
`prepare` downloads and decodes; nothing else needs a network or TensorFlow.
"""
