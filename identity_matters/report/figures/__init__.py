"""The figures of the report, a module an experiment, in the order in which they are shown."""

FIGURES = ()
