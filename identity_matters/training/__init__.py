"""Training of image classifiers: what a step computes, on which devices, and how a run survives.

`schedule` and `optimizer` make the update rule, `steps` the pure step, `parallel` runs steps on
many devices, `checkpoint` keeps the state on disk, `peaks` knows what devices can do at most, and
`loop.fit` joins them. A model and its data come in as one `task.Task`.
"""
