"""The hooks of a task's data module, with their arguments and errors.

A data module is a Python module or package that a task's YAML names in `equipoise.data.module`.
It has what `DataModule` asks for, and of the other protocols those that its task needs:

    DataModule       PromptSettings, build_prompts   what every one of them has
    ChecksPrompts    prompt_problems                 what the task cannot score or train on
    Prepares         prepare                         what prompts need first: an index, plans
    ChecksParts      check                           rows for `--dry-run`
    MakesLocalModel  LocalModelSettings, LOCAL_MODEL_NOTICE, build_local_model
    Imitates         imitated_replies                what a cold start shows to any model
    SaysInvented     invented                        a property of the PromptSettings
    SaysUnread       unread                          another one
    SaysUnfit        no_local_model, no_training     others
    CountsPrompts    training_prompts                another one
    SaysChosen       chosen                          another one

The hooks are called with their arguments in order, so a module may name them as it likes.
Importing a data module must stay cheap: torch is imported where it is needed.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pydantic import BaseModel

from environments.base import Environment, PromptRecord
from environments.chat import ChatModel
from environments.encoder import Encoder, EncoderSettings

#: A row for `--dry-run`: what, its figure, a note.
CheckRow = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Tools:
    """Tools for `prepare`: models in this process, and a way to tell the user.

    `chat_model` takes a Hugging Face name or folder. In a dry run nothing may be loaded or asked,
    but that with `trial` each model is asked one question.
    """

    chat_model: Callable[[str], ChatModel]
    encoder: Callable[[EncoderSettings], Encoder]
    say: Callable[[str], None]
    dry_run: bool = False
    trial: bool = False


@runtime_checkable
class DataModule(Protocol):
    """A module that makes prompts. `settings` is always an instance of its `PromptSettings`."""

    @property
    def PromptSettings(self) -> type[BaseModel]:  # noqa: N802  a class of the module
        """The keys of `equipoise.data`: a pydantic model with extra="forbid", frozen.

        Its key `num_samples`, which the scales set, is how many prompts are made.
        """

    def build_prompts(self, settings: Any, /) -> list[PromptRecord]:
        """The prompts, which depend on nothing but the settings and what `prepare` made.

        Each has its split (see `environments.base`), and counterfactual sets are whole. Raises
        `ValueError` where they cannot be made, with the remedy.
        """


@runtime_checkable
class ChecksPrompts(Protocol):
    """A data module that knows which prompts its task cannot score or must never train on."""

    def prompt_problems(self, records: Sequence[PromptRecord], /) -> list[str]:
        """List what is wrong with prompts from any source; see `named_faults`."""


@runtime_checkable
class Prepares(Protocol):
    """A data module whose prompts need more than its settings: an index, plans of a model."""

    def prepare(self, settings: Any, tools: Tools, /) -> None:
        """Make what is missing, before the prompts are built. Raises `ValueError`."""


@runtime_checkable
class ChecksParts(Protocol):
    """A data module that can go through the parts of its task once, without a policy."""

    def check(
        self, settings: Any, records: Sequence[PromptRecord], environment: Environment, /
    ) -> list[CheckRow]:
        """Rows for `--dry-run`. Raises `ValueError` where a part does not work."""


@runtime_checkable
class MakesLocalModel(Protocol):
    """A data module that brings a small model of its own, for machines without a GPU."""

    @property
    def LocalModelSettings(self) -> type[BaseModel]:  # noqa: N802  a class of the module
        """The keys of `equipoise.local_model`, see `WarmStart`."""

    @property
    def LOCAL_MODEL_NOTICE(self) -> str:  # noqa: N802  a constant of the module
        """One paragraph: what the local model is, and what it says nothing about."""

    def build_local_model(
        self, records: Sequence[PromptRecord], settings: Any, cache: Path, /
    ) -> Path:
        """A folder that `AutoModelForCausalLM.from_pretrained` reads, kept in `cache`.

        The model was shown no prompt of an evaluation split. Raises `UnsuitablePromptsError` for
        prompts that it cannot read.
        """


@runtime_checkable
class Imitates(Protocol):
    """A data module that has replies from which a model can learn the form of reply."""

    def imitated_replies(
        self, records: Sequence[PromptRecord], settings: Any, /
    ) -> Sequence[tuple[PromptRecord, str]]:
        """`steps * batch_size` prompts of `settings`, a `LocalModelSettings`, each with a reply.

        None of them is of an evaluation split of `records`. Raises `UnsuitablePromptsError` for
        records to which it knows no reply.
        """


@runtime_checkable
class SaysInvented(Protocol):
    """`PromptSettings` that know where the prompts come from."""

    @property
    def invented(self) -> bool:
        """Whether they are made here alone, and may be shown to anyone."""


@runtime_checkable
class SaysUnread(Protocol):
    """`PromptSettings` of which some keys mean nothing beside others."""

    @property
    def unread(self) -> Mapping[str, str]:
        """Key -> what to do in its place; a user who sets it is refused."""


@runtime_checkable
class SaysUnfit(Protocol):
    """`PromptSettings` that know before a prompt is made what it is not good for.

    Each is a reason with its remedy, empty where there is none.
    """

    @property
    def no_local_model(self) -> str:
        """Why the module's local model cannot read the prompts."""

    @property
    def no_training(self) -> str:
        """Why there is none to train on."""


@runtime_checkable
class CountsPrompts(Protocol):
    """`PromptSettings` that can know how many prompts they make before they are made."""

    @property
    def training_prompts(self) -> int | None:
        """How many there are to train on; None where only making them tells."""


@runtime_checkable
class SaysChosen(Protocol):
    """`PromptSettings` that choose values for unset keys."""

    @property
    def chosen(self) -> Sequence[str]:
        """A line for the user on each choice: the key, why, and the value."""


_FUNCTIONS: Sequence[Callable[..., Any]] = (
    DataModule.build_prompts,
    ChecksPrompts.prompt_problems,
    Prepares.prepare,
    ChecksParts.check,
    MakesLocalModel.build_local_model,
    Imitates.imitated_replies,
)
_MODELS = ("PromptSettings", "LocalModelSettings")
_PROPERTIES = (
    *("invented", "unread", "no_local_model", "no_training", "training_prompts", "chosen"),
)
_LOCAL_MODEL = ("LocalModelSettings", "LOCAL_MODEL_NOTICE", "build_local_model")


def hook_problems(module: object) -> Iterator[str]:
    """List the faults of a module's hooks; none when they can be called as they are."""
    for name in _MODELS:
        model = getattr(module, name, None)
        if model is not None and not (isinstance(model, type) and issubclass(model, BaseModel)):
            yield f"{name} is no pydantic model"
    for function in _FUNCTIONS:
        hook = getattr(module, function.__name__, None)
        if hook is not None and not _takes(hook, parameters := _arguments(function)):
            yield f"{function.__name__} is no function of ({', '.join(parameters)})"
    for name in _PROPERTIES:
        if callable(getattr(getattr(module, "PromptSettings", None), name, None)):
            yield f"PromptSettings.{name} is a method: make it a property"
    missing = [name for name in _LOCAL_MODEL if getattr(module, name, None) is None]
    if 0 < len(missing) < len(_LOCAL_MODEL):
        yield f"a local model needs {', '.join(_LOCAL_MODEL)}: there is no {', '.join(missing)}"


def _arguments(method: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(method).parameters)[1:]


def _takes(hook: Any, arguments: Sequence[str]) -> bool:
    """Whether it can be called with so many arguments; what hides its signature is believed."""
    if not callable(hook):
        return False
    try:
        inspect.signature(hook).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # a built-in function
        return True
    return True
