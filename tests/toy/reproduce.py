"""`experiments.reproduce` of a suite that is the toy alone.

Command: python -m tests.toy.reproduce --only=toy
"""

import experiments
from experiments import commands, reproduce

experiments.MODULES = {"toy": "tests.toy.experiment"}

if __name__ == "__main__":
    commands.run(reproduce.main)
