"""`experiments.reproduce` of a suite that is the toy alone.

Command: python -m tests.toy.reproduce --only=toy
"""

from experiments import commands, reproduce, suite

suite.MODULES = {"toy": "tests.toy.experiment"}
suite.EXPERIMENTS = ("toy",)

if __name__ == "__main__":
    commands.run(reproduce.main)
