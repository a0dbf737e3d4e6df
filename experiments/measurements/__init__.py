"""What the experiments measure, a file for each of them.

The experiment of the same name in experiments/ says what is claimed, lists the trials
and judges the records. It loads its file here when a run begins, so that --help and
reports wait neither for JAX nor for SciPy.
"""
