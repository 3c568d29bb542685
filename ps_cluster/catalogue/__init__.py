"""The things that a user can choose: modes, networks, staleness methods, optimizer rules, schedules.

Each one is an object that is named once and holds everything about itself. It names its TensorFlow parts as
"module:name", so nothing here imports TensorFlow. Users add their own by an entry point or a file (doors.py).
"""
