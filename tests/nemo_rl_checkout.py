"""A folder that looks like a checkout of NeMo-RL to whoever reads it without running it."""

from collections.abc import Collection
from pathlib import Path

from equipoise.config.nemo_rl.assumptions import ASSUMPTIONS, Assumption, Need

RUN_FILES = [assumption.file for assumption in ASSUMPTIONS if assumption.need == "run"]
_PACKAGE_INFO = "nemo_rl/package_info.py"


def write_checkout(root: Path, needs: Collection[Need] = ("run",)) -> None:
    """Write the files of some needs, with no more in them than is assumed."""
    contents: dict[str, str] = {}
    for assumption in ASSUMPTIONS:
        if assumption.need in needs:
            content = contents.get(assumption.file, "") + _content(assumption)
            contents[assumption.file] = content
    for file, content in contents.items():
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (root / _PACKAGE_INFO).write_text('__version__ = "0.7.0"\n')


def _content(assumption: Assumption) -> str:
    classes: dict[str, list[str]] = {}
    lines = ["raise RuntimeError('nothing may import it')"]
    for name in assumption.names:
        owner, _, attribute = name.rpartition(".")
        if owner:
            classes.setdefault(owner, []).append(attribute)
        else:
            lines.append(f"{name} = None")
    lines += [f"class {owner}: {' = '.join(names)} = None" for owner, names in classes.items()]
    return "\n".join([*lines, *(f"# {text}" for text in assumption.texts), ""])
