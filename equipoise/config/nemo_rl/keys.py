"""The whole schema: the keys that Equipoise reads, and the names of all others of NeMo-RL's.

With the names a typo is refused before anything starts: NeMo-RL keeps a key that it does not know
without a word. Types are checked by NeMo-RL itself, and so is which version has which key.
`keys.yaml` lists the names; tests/contract/test_nemo_rl_keys.py says which a new version adds.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, create_model

from environments.yaml_file import structure_of
from equipoise.config.problems import SEPARATOR
from equipoise.config.schema import Config, Section

#: Of the sections that are not below another.
_TOP = "top"


@cache
def whole_schema() -> type[Config]:
    """`Config` with every key of NeMo-RL; of those that Equipoise does not read any value is valid.

    These have no default: unset ones stay unset, and NeMo-RL's own file decides.
    """
    text = Path(__file__).with_name("keys.yaml").read_text(encoding="utf-8")
    schema: type[Config] = _complete(Config, _TOP, yaml.safe_load(text))
    return schema


def _complete(model: type[Section], section: str, names: Mapping[str, Sequence[str]]) -> Any:
    """Return the model with every key of a section, and of the sections below it."""
    declared = {info.alias or field: field for field, info in model.model_fields.items()}
    fields: dict[str, Any] = {}
    for name in names[section]:
        key = name if section == _TOP else f"{section}{SEPARATOR}{name}"
        if name not in declared:
            kind = _complete(Section, key, names) | None if key in names else Any
            fields[f"nemo_rl_{name}"] = (kind, Field(default=None, alias=name))
        elif key in names:
            info = copy(model.model_fields[declared[name]])
            below = _complete(structure_of(info.annotation), key, names)
            optional = type(None) in getattr(info.annotation, "__args__", ())
            info.annotation = below | None if optional else below
            # A section by default is one of the completed model.
            info.default = below() if isinstance(info.default, Section) else info.default
            fields[declared[name]] = (info.annotation, info)
    return create_model(model.__name__, __base__=model, **fields)
