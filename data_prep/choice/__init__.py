"""Choice: questions of others in counterfactual variants, to be asked and never trained on."""

from data_prep.choice.prompts import PromptSettings, build_prompts, prompt_problems

__all__ = ["PromptSettings", "build_prompts", "prompt_problems"]
