"""Retrieval for a frozen generator: queries are rewarded by the answer that they bring."""

from environments.rag.environment import RagEnvironment, RagSettings

__all__ = ["RagEnvironment", "RagSettings"]
