"""A user's YAML file, read into a pydantic model: every fault is reported at once."""

import difflib
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints
from urllib.parse import urlsplit

import yaml
from pydantic import AfterValidator, BaseModel, ValidationError
from pydantic_core import ErrorDetails
from typing_extensions import is_typeddict

from environments.base import CodedError
from environments.replies import is_broken

Content = TypeVar("Content", bound=BaseModel)

_LARGEST = 2**63
#: How many faults a message spells out; the others are counted.
SHOWN = 20
#: What pydantic says of the kinds in a union that a value is none of.
_OTHER_KINDS = ("literal_error", "string_type", "list_type", "dict_type")
_QUOTE = ': quote it ("no"), YAML reads yes, no, on and off as true and false'


class YamlFileError(CodedError, ValueError):
    """A file that cannot be used: which one, and a line for each fault."""

    def __init__(self, code: str, path: Path, faults: Sequence[str]) -> None:
        lines = "\n".join(f"    {fault}" for fault in shown_faults(faults))
        super().__init__(code, f"{path} cannot be used:\n{lines}")


def shown_faults(faults: Sequence[str]) -> list[str]:
    """The first faults, and how many more there are."""
    ending = [f"and {len(faults) - SHOWN} more"] if len(faults) > SHOWN else []
    return [*faults[:SHOWN], *ending]


class CheckedLoader(yaml.SafeLoader):
    """Names the line of a wrong tag, of broken text and of a huge number."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Construct a value. Raises `ConstructorError` with its line."""
        try:
            value = super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError):
            kind = node.tag.rpartition(":")[2]
            problem = f"{str(node.value)[:60]!r} is not a {kind}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None
        problem = ""
        if isinstance(value, str) and is_broken(value):
            problem = "text with half of a surrogate pair, or with the character NUL"
        elif isinstance(value, int) and abs(value) >= _LARGEST:
            problem = "a number of more than 64 bits"
        if problem:
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return value


class _Loader(CheckedLoader):
    """Refuses what PyYAML takes silently: a key that is there twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in keys:
                problem = f"{key.value!r} is there twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            keys.add(str(key.value))
        return super().construct_mapping(node, deep)


def read_yaml_file(path: Path, model: type[Content]) -> Content:
    """The content of a file. Raises `YamlFileError` with everything that is wrong with it."""
    return check_tree(path, read_tree(path), model, strict=True)


def check_tree(path: Path, tree: Any, model: type[Content], *, strict: bool) -> Content:
    """The model of keys that a file holds. Raises `YamlFileError` with all that is wrong."""
    try:
        return model.model_validate(tree, strict=strict)
    except ValidationError as error:
        details = _without_alternatives(error.errors(include_url=False), tree)
        faults = dict.fromkeys(line for detail in details for line in _faults(detail, tree, model))
        raise YamlFileError("yaml.invalid-keys", path, list(faults)) from None


def read_tree(path: Path) -> dict[Any, Any]:
    """The keys that a file holds. Raises `YamlFileError` where there are none."""
    try:
        tree = yaml.load(path.read_text("utf-8"), Loader=_Loader)  # noqa: S506 (a SafeLoader)
    except OSError as error:
        raise YamlFileError("yaml.unreadable", path, [error.strerror or "cannot be read"]) from None
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise YamlFileError(
            "yaml.invalid-syntax", path, [f"{line}not valid YAML ({error.problem})"]
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        raise YamlFileError("yaml.no-yaml", path, ["not valid YAML"]) from None
    if not isinstance(tree, dict):
        raise YamlFileError("yaml.no-mapping", path, ["holds no keys with values, `key: value`"])
    return tree


def _without_alternatives(details: list[ErrorDetails], tree: Any) -> list[ErrorDetails]:
    """Drop "should be a list" of a mapping in which something else is wrong."""
    paths = [key_path(detail, tree) for detail in details]
    return [
        detail
        for detail, path in zip(details, paths, strict=True)
        if detail["type"] not in _OTHER_KINDS
        or not any(path == longer[: len(path)] for longer in paths if len(longer) > len(path))
    ]


def _faults(detail: ErrorDetails, tree: Any, model: type[BaseModel]) -> list[str]:
    """The lines of one of pydantic's errors; those of a `FaultsError` have places of their own."""
    path = [str(part + 1) if isinstance(part, int) else part for part in key_path(detail, tree)]
    location = ".".join(path)
    if detail["type"] == "value_error":
        error = detail["ctx"]["error"]
        lines = error.lines if isinstance(error, FaultsError) else (str(error),)
        return [f"{location}: {line}" if location else line for line in lines]
    if detail["type"] == "extra_forbidden":
        *parents, name = path
        return [f"{location}: unknown key{nearest(name, fields_at(model, parents))}"]
    if detail["type"] == "missing":
        return [f"{location}: is missing"]
    value = repr(detail["input"])
    value = f"{value[:60]}..." if len(value) > 60 else value
    message = detail["msg"].removeprefix("Input ")
    hint = _QUOTE if isinstance(detail["input"], bool) else ""
    return [f"{location}: {message[0].lower()}{message[1:]}, not {value}{hint}"]


def key_path(detail: ErrorDetails, tree: Any) -> list[str | int]:
    """Locate an error in `tree` by keys and indices. Pydantic adds the names of union types."""
    path: list[str | int] = []
    for position, part in enumerate(detail["loc"], start=1):
        absent = detail["type"] == "missing" and position == len(detail["loc"])
        if isinstance(tree, dict) and (part in tree or absent):
            path.append(str(part))
            tree = tree.get(part)
        elif isinstance(tree, list) and isinstance(part, int):
            path.append(part)
            tree = tree[part] if part < len(tree) else None
    return path


class FaultsError(ValueError):
    """Several faults that one validator found, a line for each."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("; ".join(self.lines))


def nearest(name: str, candidates: Iterable[str]) -> str:
    """Suggest a name for an unknown one, as the end of a message."""
    names = list(candidates)
    matches = difflib.get_close_matches(name, names, n=1)
    if matches:
        return f", did you mean {matches[0]}?"
    return f"; there are {', '.join(names)}" if names else ""


def fields_at(model: Any, parents: Sequence[str]) -> Mapping[str, Any]:
    """The fields of the section at a path; indices and names that a user gives are passed over."""
    for name in parents:
        fields = fields_of(model)
        model = structure_of(fields[name]) if name in fields else model
    return fields_of(model)


def fields_of(model: Any) -> Mapping[str, Any]:
    """Name in the YAML -> type, of a pydantic model or a typed dictionary; else nothing."""
    if is_typeddict(model):
        return get_type_hints(model)
    if isinstance(model, type) and issubclass(model, BaseModel):
        return {info.alias or name: info.annotation for name, info in model.model_fields.items()}
    return {}


def structure_of(annotation: Any) -> Any:
    """The model or typed dictionary in a type such as `list[X] | None`; None if there is none."""
    if is_typeddict(annotation) or (
        isinstance(annotation, type) and issubclass(annotation, BaseModel)
    ):
        return annotation
    structures = (structure_of(argument) for argument in get_args(annotation))
    return next((structure for structure in structures if structure is not None), None)


def file_hash(path: Path) -> str:
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


# --- addresses and paths, which are kept with the run --------------------------------------------


#: Said from the folder in which a run is started, found by a worker in any other.
AbsolutePath = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]


def plain_url(url: str, instead: str) -> str:
    """The address without a slash at its end.

    Raises `ValueError` for what is not an http or https address, and for one with a user, a
    password or a query: `instead` says what to do.
    """
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        (parts.hostname or "").encode("idna")  # no label is empty or too long
    except ValueError:
        valid = False
    if not valid:
        raise ValueError(
            "not an http or https address: it must start with http:// or https:// and name a host"
        )
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(f"takes no user, password or query{instead}")
    return url.rstrip("/")
