"""Retrieval for a frozen generator: queries are rewarded by the answer that they bring."""

from environments.rag_accuracy.environment import RagEnvironment, RagSettings

__all__ = ["RagEnvironment", "RagSettings"]
