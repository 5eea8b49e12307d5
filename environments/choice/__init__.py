"""Multiple choice in counterfactual sets: others' test sets, to be asked and never trained on."""

from environments.choice.environment import ChoiceEnvironment, ChoiceSettings

__all__ = ["ChoiceEnvironment", "ChoiceSettings"]
