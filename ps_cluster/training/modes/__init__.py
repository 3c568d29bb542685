"""The modes of training, a file for each. `config.modes.MODES` finds them here by itself.

`base.py` has what all of them share; `waiting.py`, `local_steps.py`, `outer_steps.py` and `split_network.py` have what some
of them share.
"""
