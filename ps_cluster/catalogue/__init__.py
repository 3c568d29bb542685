"""The kinds of things that a user can choose: modes, networks, staleness methods, optimizer rules, schedules.

Here are their base classes and settings. The objects are one file each, in the folder that `Kinds` names; an object is
named once and holds everything about itself. Nothing of it imports TensorFlow before it is used (lazily.py). Users add
their own by an entry point or a file (doors.py).
"""
