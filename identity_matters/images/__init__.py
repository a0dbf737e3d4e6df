"""Data sets: whole splits in memory (`datasets`), and ImageNet (`imagenet`).

`miniature` writes small ImageNets for tests. `identity_matters.preprocessing` turns
images into inputs of a net.
"""
