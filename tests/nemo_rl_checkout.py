"""A folder that looks like a checkout of NeMo-RL to whoever reads it without running it."""

_FILES = {
    "nemo_rl/algorithms/grpo.py": "raise RuntimeError('nothing may import it')\n",
    "nemo_rl/package_info.py": '__version__ = "0.7.0"\n',
    "examples/configs/grpo_math_1B.yaml": "",
}


def write_checkout(root):
    """Write the files that are looked at."""
    for name, text in _FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
