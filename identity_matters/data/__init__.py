"""Data sets: what they are (`sources`), whole splits in memory (`arrays`), and how to get them.

`prepare` downloads and decodes; nothing else needs a network or TensorFlow.
"""
