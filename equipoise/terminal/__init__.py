"""Output to a terminal, and how a user stops a run there."""
