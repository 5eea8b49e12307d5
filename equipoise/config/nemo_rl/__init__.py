"""NeMo-RL as a configuration sees it: its keys, what it gets wrong, where it is installed."""
