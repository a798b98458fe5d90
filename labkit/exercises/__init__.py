"""Checks, hints, solutions and wrong answers for the exercises of every notebook."""

from labkit.exercises.core import Exercise, Refused, Wrong, all_exercises, check, expect, find, hint, refuse, solution

__all__ = ["Exercise", "Refused", "Wrong", "all_exercises", "check", "expect", "find", "hint", "refuse", "solution"]
