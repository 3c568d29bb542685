"""The modes of training, one file for each. `config.modes.MODES` finds them in this folder.

All modes share `base.py`. Some modes share `waiting.py`, `local_steps.py`, `outer_steps.py`,
`fragments.py` and `split_network.py`.
"""
