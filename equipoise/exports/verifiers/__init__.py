"""The environments for verifiers: one package for each, in which a set is one episode."""
