"""PubMedQA: a research question answered yes, no or maybe from the abstract of a study."""

from environments.pubmedqa.environment import PubMedQAEnvironment, PubMedQASettings
from environments.pubmedqa.reply import FORMAT_TEXT, LABELS

__all__ = ["FORMAT_TEXT", "LABELS", "PubMedQAEnvironment", "PubMedQASettings"]
