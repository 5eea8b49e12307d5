"""Keys that one version of NeMo-RL has and the one that is installed here has not."""

from collections.abc import Iterable, Iterator, Mapping

from equipoise.config.nemo_rl.checkout import read_keys
from equipoise.config.nemo_rl.installation import find_installation
from equipoise.config.nemo_rl.schema import versions
from equipoise.config.nemo_rl.types import SECTION
from equipoise.config.problems import within
from equipoise.errors import EquipoiseError


def unknown_to_installed(keys: Iterable[str]) -> Iterator[str]:
    """A warning for each of the keys that the installed NeMo-RL does not know.

    What every version has is not looked up; without an installation there is nothing to say.
    """
    known_to = {
        key: [name for name, keys_of_version in versions().items() if _knows(keys_of_version, key)]
        for key in keys
    }
    of_some = {key: names for key, names in known_to.items() if 0 < len(names) < len(versions())}
    if not of_some:
        return
    try:
        installation = find_installation()
        installed = read_keys(installation.root)
    except (EquipoiseError, OSError, SyntaxError, ValueError):
        return
    for key, names in of_some.items():
        if not _knows(installed, key):
            yield (
                f"{key} is a key of NeMo-RL {', '.join(names)}; the installed "
                f"{installation.version} does not know it and will ignore it"
            )


def _knows(types: Mapping[str, str], key: str) -> bool:
    """Whether a version has the key, or a key above it that takes any."""
    return key in types or any(
        within(key, name) and SECTION not in text for name, text in types.items()
    )
