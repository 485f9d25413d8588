"""The search for the change that broke a model.

`search` finds the next question from all answers. `mixtures` makes the build directory of any mixture of two numbers.
`points` lists the commits, versions and dated images between two numbers. `commands/bisecting.py` begins and ends a
bisection; `commands/bisect_trying.py` builds and judges its candidates.
"""
