"""`experiments.reproduce` with the toy as its only experiment.

Command: python -m tests.toy.reproduce --only=toy
"""

import experiments
from experiments import commands, reproduce

experiments.MODULES = {"toy": "tests.toy.experiment"}

if __name__ == "__main__":
    commands.run(reproduce.main)
