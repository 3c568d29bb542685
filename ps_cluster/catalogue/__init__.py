"""The kinds of things that a user can choose: data sets, modes, networks, staleness methods, optimizer rules, schedules.

This package has their base classes and settings, and the objectives of data sets. The objects are one file each, in the
folder that `Kinds` names; an object is named once and holds everything about itself. None imports TensorFlow before it
is used (lazily.py). Users add their own by an entry point or a file (doors.py).
"""
