"""Decide when the chief pauses, so that it can save a state in which all shards have applied the same steps."""

from __future__ import annotations

from collections.abc import Callable

# A state is aligned if all shards have applied the same steps, so that another number of shards can continue from it
# (runs/resharding.py). With several shards, an aligned state is saved at least this often. The first one is saved when
# the first snapshot is due, because until then the permanent loss of a server costs all work. Many snapshots are
# aligned by chance. If none was for this long, the chief hands out no steps until all steps under way have ended.
ALIGNED_STATE_EVERY_S, LONGEST_PAUSE_S = 60.0, 10.0
PAUSE_FACTOR = 20  # the time between two pauses is at least this many times as long as a pause


class AlignedStates:
    """Decides when the chief pauses to save an aligned state, in which all shards have applied the same steps.

    During a pause, the chief hands out no steps. Call `poll` after each check of the ledger, and save a snapshot if it
    returns True. Call `note_saved` after each save.
    """

    def __init__(self, *, has_aligned: bool, snapshot_every_s: float, clock: Callable[[], float]):
        """Start measuring the time until the first pause.

        Args:
          has_aligned: whether the run directory already holds an aligned state with at least one update.
          snapshot_every_s: the seconds between snapshots.
        """
        self._clock = clock
        self._since_s = clock()  # the time of the last aligned state, or of the end of the last pause
        self._every_s = ALIGNED_STATE_EVERY_S if has_aligned else min(ALIGNED_STATE_EVERY_S, snapshot_every_s)
        self._applied = 0  # the number of updates applied at the last call of `poll`
        self._paused_at = 0  # the number of updates applied at the last call of `poll` during a pause

    @property
    def is_paused(self) -> bool:
        """Whether the chief pauses, which means that it hands out no steps.

        During this pause, all shards reach a state in which they have applied the same steps.
        """
        return self._paused_s >= 0

    @property
    def _paused_s(self) -> float:
        """The seconds since the pause for an aligned state began; negative while the chief hands out steps."""
        return self._clock() - self._since_s - self._every_s if self._applied else -1.0

    def poll(self, applied: int, outstanding: int, longest_update_s: float) -> bool:
        """Record the progress. Return True if the chief pauses and no step is under way, so that a snapshot is due now.

        If steps are still under way after the longer of `LONGEST_PAUSE_S` and `longest_update_s`, the pause ends
        without a snapshot. It continues, however, as long as each call finds newly applied updates.

        Args:
          applied: the number of updates that are applied.
          outstanding: the number of updates that are under way.
          longest_update_s: the longest time that an update of a healthy run takes.
        """
        self._applied = applied
        if not applied:  # there is nothing to save yet
            self._since_s = self._clock()
        if not self.is_paused:
            return False
        moves, self._paused_at = applied > self._paused_at, applied
        if outstanding and not moves and self._paused_s >= max(LONGEST_PAUSE_S, longest_update_s):
            self._end_pause()
        return not outstanding

    def note_saved(self, aligned: bool, step: int) -> None:
        """Record that a state was saved.

        An aligned state with at least one update ends the pause. If there is no pause, the time until the next one
        starts anew.
        """
        if aligned and step:
            self._end_pause()

    def give_up(self) -> None:
        """End the pause, if there is one, although no aligned state was reached.

        The next pause comes after the usual time.
        """
        if self.is_paused:
            self._end_pause()

    def _end_pause(self) -> None:
        self._every_s = max(ALIGNED_STATE_EVERY_S, PAUSE_FACTOR * self._paused_s)
        self._since_s = self._clock()
