"""Provide a clock that only moves when somebody sleeps."""


class FakeTime:
    """A clock that only `sleep` moves. `sleep` also calls the functions of `at(seconds, function)` that are due."""

    def __init__(self):
        self.now_s = 0.0
        self._due = []

    def clock(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds
        for at_s, function in [due for due in self._due if due[0] <= self.now_s]:
            self._due.remove((at_s, function))
            function()

    def at(self, seconds, function):
        self._due.append((seconds, function))
