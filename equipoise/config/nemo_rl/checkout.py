"""Which keys a GRPO run has in a checkout of NeMo-RL, and what type each takes.

The classes of its `MasterConfig` are read from their source, so that nothing of NeMo-RL is
imported or installed. They do not declare all that its code reads: what its own GRPO examples set
besides is added, with the types of the values there.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from pydantic import TypeAdapter, ValidationError

from equipoise.config.nemo_rl.installation import find_installation
from equipoise.config.nemo_rl.schema import SECTION, read_type, versions
from equipoise.config.problems import SEPARATOR, within
from equipoise.config.schema import Config
from equipoise.config.validate import known_keys
from equipoise.errors import EquipoiseError

#: A class by its module and name.
ClassName = tuple[str, str]

_ROOT: ClassName = ("nemo_rl.algorithms.grpo", "MasterConfig")
_EXAMPLES = "examples/configs"
_OPEN = "dict[str, Any]"
_SIMPLE = {
    **{name: name for name in ("int", "float", "str", "bool", "Any", "list")},
    **dict.fromkeys(("PositiveInt", "NonNegativeInt"), "int"),
    **dict.fromkeys(("PositiveFloat", "NonNegativeFloat"), "float"),
    **dict.fromkeys(("dict", "Dict"), _OPEN),
    "object": "Any",
    "PathLike": "str",
}
#: What NeMo-RL's loader of YAML takes for itself.
_LOADER_WORDS = ("defaults", "_override_")
_WRAPPERS = ("NotRequired", "Required", "Annotated")
_SUBCLASS = re.compile(r"^class \w+\(.*Config\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Type:
    """The alternatives of an annotation, and the classes that `section` means in them."""

    texts: tuple[str, ...]
    classes: tuple[ClassName, ...] = ()

    def __or__(self, other: "_Type") -> "_Type":
        classes = dict.fromkeys((*self.classes, *other.classes))
        return _Type((*self.texts, *other.texts), tuple(classes))

    def within(self, outer: str) -> "_Type":
        """The type of a container of such values, `outer` being its text with `{}` for theirs."""
        return _Type((outer.format(join_types(self.texts)),), self.classes)


@dataclass
class _Source:
    """The modules of a checkout, parsed and not imported."""

    root: Path
    _modules: dict[str, dict[str, Any]] = field(default_factory=dict)

    def names(self, module: str) -> dict[str, Any]:
        """Name -> its class, the expression assigned to it, or module and name it comes from."""
        if module not in self._modules:
            path = self.root.joinpath(*module.split("."))
            file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            tree = ast.parse(file.read_bytes()) if file.is_file() else ast.Module([], [])
            self._modules[module] = dict(_bindings(tree))
        return self._modules[module]

    def find(self, module: str, name: str) -> tuple[str, str, Any]:
        """Trace `name` in `module` to its definition: module, name, class or expression or None."""
        visited: set[ClassName] = set()
        while isinstance(bound := self.names(module).get(name), tuple) and bound not in visited:
            visited.add(bound)
            module, name = bound
        return module, name, None if isinstance(bound, tuple) else bound

    @cached_property
    def subclasses(self) -> dict[ClassName, list[ClassName]]:
        """Class -> the classes that inherit from it, anywhere in NeMo-RL."""
        below: dict[ClassName, list[ClassName]] = {}
        for file in sorted((self.root / "nemo_rl").rglob("*.py")):
            if _SUBCLASS.search(file.read_text(encoding="utf-8")):
                path = file.relative_to(self.root).with_suffix("")
                module = ".".join(path.parts).removesuffix(".__init__")
                for name, bound in self.names(module).items():
                    for base in self.bases(module, bound):
                        below.setdefault(base, []).append((module, name))
        return below

    def bases(self, module: str, bound: Any) -> Iterator[ClassName]:
        """The classes of NeMo-RL that a class inherits from."""
        for base in bound.bases if isinstance(bound, ast.ClassDef) else ():
            if isinstance(base, ast.Name):
                origin, name, definition = self.find(module, base.id)
                if isinstance(definition, ast.ClassDef):
                    yield origin, name


def _bindings(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    for node in tree.body:
        match node:
            case ast.ImportFrom(module=str(module), names=aliases):
                yield from ((a.asname or a.name, (module, a.name)) for a in aliases)
            case ast.ClassDef(name=name):
                yield name, node
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value


def read_keys(root: Path) -> dict[str, str]:
    """Key -> the text of its type, of the NeMo-RL at `root`, sorted.

    Raises `OSError`, `SyntaxError` or `ValueError` for what is no such checkout.
    """
    source = _Source(root)
    keys = dict(_declared(source, [_ROOT]))
    if not keys:
        raise ValueError(f"{root} has no {SEPARATOR.join(_ROOT)}")
    for example in _examples(root):
        _add(keys, example)
    # Null alone tells nothing of what else there may be.
    return {key: "Any" if keys[key] == "None" else keys[key] for key in sorted(keys)}


def unknown_to_installed(keys: Iterable[str]) -> Iterator[str]:
    """A warning for each of the keys that the installed NeMo-RL does not know.

    What every version has is not looked up; without an installation there is nothing to say.
    """
    known_to = {
        key: [name for name, keys_of_version in versions().items() if knows(keys_of_version, key)]
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
        if not knows(installed, key):
            yield (
                f"{key} is a key of NeMo-RL {', '.join(names)}; the installed "
                f"{installation.version} does not know it and will ignore it"
            )


def missing_keys(installed: Mapping[str, str]) -> list[str]:
    """Keys that Equipoise reads, that each tried version has and the installed one has not.

    Of a section that is missing it is the section alone.
    """
    tried = versions().values()
    missing = {
        key
        for key in known_keys(Config)
        if all(knows(keys, key) for keys in tried) and not knows(installed, key)
    }
    return sorted(key for key in missing if not any(within(key, m) for m in missing - {key}))


def knows(types: Mapping[str, str], key: str) -> bool:
    """Whether a version has the key, or a key above it that takes any."""
    return key in types or any(
        within(key, name) and SECTION not in text for name, text in types.items()
    )


def _examples(root: Path) -> Iterator[dict[str, Any]]:
    """NeMo-RL's own GRPO configurations, and the files that they inherit from."""
    waiting = sorted((root / _EXAMPLES).rglob("grpo*.y*ml"))
    read: set[Path] = set()
    while waiting:
        path = waiting.pop().resolve()
        if path not in read:
            read.add(path)
            tree: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
            parents = tree.get("defaults", [])
            for parent in [parents] if isinstance(parents, str) else parents:
                waiting.append(path.parent / parent)
            yield tree


def _declared(
    source: _Source,
    classes: Iterable[ClassName],
    prefix: str = "",
    above: frozenset[ClassName] = frozenset(),
) -> Iterator[tuple[str, str]]:
    """The keys of a section that has one of the classes, with all that lies below.

    `above` are the classes of the sections around it; one that holds itself has no end.
    """
    fields: dict[str, _Type] = {}
    for name in set(classes) - above:
        for key, kind in _fields(source, name):
            fields[key] = fields[key] | kind if key in fields else kind
    for key, kind in fields.items():
        yield prefix + key, join_types(kind.texts)
        below = prefix + key + SEPARATOR
        yield from _declared(source, kind.classes, below, above.union(classes))


def _fields(source: _Source, name: ClassName, *, below: bool = True) -> Iterator[tuple[str, _Type]]:
    """The fields of a class, its bases and its subclasses.

    Which subclass a section has is decided by another key, as `policy.generation.backend` does.
    """
    module, _, definition = source.find(*name)
    for base in source.bases(module, definition):
        yield from _fields(source, base, below=False)
    for node in definition.body if isinstance(definition, ast.ClassDef) else ():
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, _type(source, module, node.annotation)
    for subclass in source.subclasses.get(name, ()) if below else ():
        yield from _fields(source, subclass)


def _type(source: _Source, module: str, node: ast.expr) -> _Type:
    """Read an annotation; what is not NeMo-RL's own or of no form known here is Any."""
    match node:
        case ast.Constant(value=None):
            return _Type(("None",))
        case ast.Constant(value=str(quoted)):
            return _type(source, module, ast.parse(quoted, mode="eval").body)
        case ast.BinOp(left=left, right=right):
            return _type(source, module, left) | _type(source, module, right)
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in _SIMPLE:
            return _Type((_SIMPLE[name],))
        case ast.Name(id=name):
            origin, name, definition = source.find(module, name)
            if isinstance(definition, ast.ClassDef):
                return _Type((SECTION,), ((origin, name),))
            return _type(source, origin, definition) if definition else _Type(("Any",))
        case ast.Subscript(value=ast.Name(id=outer), slice=inner):
            parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            return _generic(source, module, outer, parts)
    return _Type(("Any",))


def _generic(source: _Source, module: str, outer: str, parts: list[ast.expr]) -> _Type:
    if outer == "Literal":
        return _Type(tuple(f"Literal[{ast.unparse(part)}]" for part in parts))
    if outer in _WRAPPERS:
        return _type(source, module, parts[0])
    inner = [_type(source, module, part) for part in parts]
    if outer == "Optional":
        return inner[0] | _Type(("None",))
    if outer == "Union":
        first, *alternatives = inner
        for kind in alternatives:
            first |= kind
        return first
    if outer in ("list", "List", "Sequence"):
        return inner[0].within("list[{}]")
    return inner[1].within("dict[str, {}]") if outer in ("dict", "Dict") else _Type(("Any",))


def _add(keys: dict[str, str], values: Mapping[str, Any], prefix: str = "") -> None:
    """Add what an example sets and no class declares.

    A section that only examples show takes any key, for nothing tells which others it has.
    """
    for name, value in values.items():
        if name in _LOADER_WORDS:
            continue
        key = f"{prefix}{name}"
        if isinstance(value, str) and "${" in value:
            keys.setdefault(key, "Any")
        elif key not in keys or not _fits(value, keys[key]):
            kind = "None" if value is None else type(value).__name__
            kind = _OPEN if isinstance(value, dict) else kind
            keys[key] = join_types([kind, keys.get(key, "None")])
        for section in value if isinstance(value, list) else [value]:
            if isinstance(section, dict) and SECTION in keys[key]:
                _add(keys, section, key + SEPARATOR)


def _fits(value: Any, text: str) -> bool:
    try:
        TypeAdapter(read_type(text, dict)).validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


def join_types(texts: Iterable[str]) -> str:
    """One text for all of them, without what another of them holds already."""
    parts = set(texts)
    if "Any" in parts:
        return "Any"
    choices = {part.removeprefix("Literal[")[:-1] for part in parts if part.startswith("Literal[")}
    parts = {part for part in parts if not part.startswith("Literal[")}
    if "float" in parts:
        parts.discard("int")  # a float takes whole numbers too
    if "dict[str, Any]" in parts:
        parts = {part for part in parts if not part.startswith("dict[")} | {"dict[str, Any]"}
    if choices <= {"True", "False"}:
        parts |= {"bool"} if choices else set()
    elif "str" not in parts:
        parts.add(f"Literal[{', '.join(sorted(choices))}]")
    return " | ".join(sorted(parts, key=lambda part: (part == "None", part)))
