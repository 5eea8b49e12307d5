"""Environments, which give reward: a package for each task, and their contract in `base`."""
