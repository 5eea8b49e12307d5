"""The stages of a run that no engine has for itself, from its prompts to its tables."""
