"""NeMo-RL's own keys: facts about each version that Equipoise runs on, and the model of them.

A file `<version>.json` says for every key of a GRPO run what type it takes. It is made from a
checkout of that version by `python -m equipoise.config.nemo_rl CHECKOUT FILE`, never by hand; so
is that of a new version, which then takes the place of the one that it replaces.
"""
