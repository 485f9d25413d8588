"""The commands, free of printing: one module each, with the function ``run`` that the command line calls.

A variant of a command is a function beside it (``preview``, ``follow``). ``completion`` and ``schemas`` only look
things up; `upgrade_parts` and `shared` hold what commands are made of.
"""
