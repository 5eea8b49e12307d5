"""Verbs: they order the stages, print what these return, and write documents of it."""
