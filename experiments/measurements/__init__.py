"""What the experiments measure.

The experiment of the same name in experiments/ says what is claimed, lists the trials
and judges the records. It loads its file here when a run begins, so that --help and
reports wait neither for JAX nor for SciPy. `memorize` and `relu` have several files
here; the one of the experiment's name loads the others.
"""
