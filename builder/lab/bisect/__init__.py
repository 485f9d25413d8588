"""The search for the change that broke a model.

`search` tells from all answers what to try next. `mixtures` makes the build directory of any mixture of two numbers,
`points` finds what lies between them: commits, versions, images of a day. `commands/bisecting.py` begins and ends a
bisection, `commands/bisect_trying.py` builds and judges its candidates.
"""
