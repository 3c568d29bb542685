"""What there is to choose from: modes, networks, data sets, staleness methods, optimizer rules, schedules.

Each kind is an object that is named once and knows all about itself. It names its TensorFlow parts as "module:name", so
nothing here imports TensorFlow. Others bring their own through an entry point or a file (doors.py).
"""
