"""Settings of every test: no timed test, and the same examples in every run."""

from hypothesis import settings

settings.register_profile("equipoise", deadline=None, derandomize=True, database=None)
settings.load_profile("equipoise")
