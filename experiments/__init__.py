"""Entry points: ``python -m experiments.NAME``, each a claim, figure or table of the paper."""
