"""The contract of a task's data module, which makes prompts.

A data module is a Python module or package that a task's YAML names in `equipoise.data.module`. It
has the settings of its prompts, which extend `DataSettings`, and functions, of which `DataModule`
lists all with their arguments and errors:

    class PromptSettings(DataSettings):
        num_samples: int = 120

    def build_prompts(settings):
        return [PromptRecord(...) for i in range(settings.num_samples)]

Those two are what it must have. The functions are called with their arguments in order, so a module
may name them as it likes. Importing a data module must stay cheap: torch is imported where it is
needed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from data_prep.warm_start import Example, WarmStart
from environments.base import PromptRecord
from environments.chat import ChatModel
from environments.contract import Environment
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


class DataSettings(BaseModel, extra="forbid", frozen=True):
    """The keys of `equipoise.data`, and what can be known from them before a prompt is made.

    The key `num_samples`, which the scales set, is how many prompts are made.
    """

    @property
    def invented(self) -> bool | None:
        """Whether prompts are made here alone and may be shown to anyone; None: not known."""
        return None

    @property
    def unread(self) -> Mapping[str, str]:
        """Keys that mean nothing beside the others -> what to do instead; to set one is refused."""
        return {}

    @property
    def no_local_model(self) -> str:
        """Why the local model cannot read the prompts, with the remedy; empty where it can."""
        return ""

    @property
    def no_training(self) -> str:
        """Why there is no prompt to train on, with the remedy; empty where there are some."""
        return ""

    @property
    def training_prompts(self) -> int | None:
        """How many prompts there are to train on; None where only making them tells."""
        return None

    @property
    def chosen(self) -> Sequence[str]:
        """Lines for the user, each on a value chosen for an unset key: key, why, value."""
        return ()


class DataModule:
    """A task's module with a default for each function that it does not have.

    `settings` is always an instance of its `PromptSettings`. `offers` asks for a function, as
    `offers(DataModule.prepare)`.
    """

    def __init__(self, module: ModuleType) -> None:
        """Take a module in which `hook_problems` finds none."""
        self._module: Any = module
        self.name = module.__name__
        self.PromptSettings: type[DataSettings] = self._module.PromptSettings
        #: The keys of `equipoise.local_model`, see `WarmStart`; None without a local model.
        self.LocalModelSettings: type[BaseModel] | None = getattr(
            module, "LocalModelSettings", None
        )
        #: One paragraph: what the local model is, and what it says nothing about.
        self.LOCAL_MODEL_NOTICE: str = getattr(module, "LOCAL_MODEL_NOTICE", "")

    def offers(self, function: Callable[..., Any]) -> bool:
        """Whether the module has a function of this name."""
        return getattr(self._module, function.__name__, None) is not None

    def build_prompts(self, settings: Any) -> list[PromptRecord]:
        """Make the prompts, from nothing but the settings and what `prepare` made.

        Each has its split (see `environments.base`), and counterfactual sets are whole. Raises
        `ValueError` where they cannot be made, with the remedy.
        """
        prompts: list[PromptRecord] = self._module.build_prompts(settings)
        return prompts

    def prompt_problems(self, records: Sequence[PromptRecord]) -> list[str]:
        """List why prompts from any source cannot be scored or trained on; see `named_faults`."""
        has_checks = self.offers(DataModule.prompt_problems)
        return list(self._module.prompt_problems(records)) if has_checks else []

    def prepare(self, settings: Any, tools: Tools) -> None:
        """Make what prompts need first: an index, plans of a model. Raises `ValueError`."""
        if self.offers(DataModule.prepare):
            self._module.prepare(settings, tools)

    def check(
        self, settings: Any, records: Sequence[PromptRecord], environment: Environment
    ) -> list[CheckRow]:
        """Go through the parts of the task once, without a policy, for rows of `--dry-run`.

        Raises `ValueError` where a part does not work.
        """
        has_check = self.offers(DataModule.check)
        return list(self._module.check(settings, records, environment)) if has_check else []

    def build_local_model(
        self, records: Sequence[PromptRecord], settings: Any, cache: Path
    ) -> Path:
        """Make a small model for machines without a GPU, kept in `cache`; return its folder.

        Without a function of the module's own it imitates the `imitated_replies`.
        `AutoModelForCausalLM.from_pretrained` reads the folder. The model was shown no prompt of an
        evaluation split. Raises `UnsuitablePromptsError` for prompts that it cannot read.
        """
        if self.offers(DataModule.build_local_model):
            folder: Path = self._module.build_local_model(records, settings, cache)
            return folder
        from data_prep.tiny_model import warm_start  # imports torch

        replies = self.imitated_replies(records, settings)
        examples = [Example(record.messages, reply) for record, reply in replies]
        return warm_start(examples, settings, cache)

    def imitated_replies(
        self, records: Sequence[PromptRecord], settings: Any
    ) -> Sequence[tuple[PromptRecord, str]]:
        """Return prompts, each with a reply from which any model can learn the form of reply.

        There are `steps * batch_size` of `settings`, a `LocalModelSettings`, and none is of an
        evaluation split of `records`. Raises `UnsuitablePromptsError` for records to which it knows
        no reply.
        """
        replies: Sequence[tuple[PromptRecord, str]]
        replies = self._module.imitated_replies(records, settings)
        return replies


#: What a local model needs; in place of the last a module may have `build_local_model`.
_LOCAL_MODEL = ("LocalModelSettings", "LOCAL_MODEL_NOTICE", "imitated_replies")


def hook_problems(module: object) -> Iterator[str]:
    """List what a module lacks."""
    for name in ("PromptSettings", "build_prompts"):
        if getattr(module, name, None) is None:
            yield f"there is no {name}"
    settings = getattr(module, "PromptSettings", None)
    yield from _base_problems("PromptSettings", settings, DataSettings)
    yield from _local_model_problems(module)


def _local_model_problems(module: object) -> Iterator[str]:
    """List what a local model lacks, where the module has a part of one."""
    settings, notice, imitates, builds = (
        getattr(module, name, None) for name in (*_LOCAL_MODEL, "build_local_model")
    )
    yield from _base_problems("LocalModelSettings", settings, BaseModel if builds else WarmStart)
    if settings is None and notice is None and builds is None:
        return
    present = (settings is not None, notice is not None, bool(imitates or builds))
    missing = [name for name, is_there in zip(_LOCAL_MODEL, present, strict=True) if not is_there]
    if missing:
        yield f"a local model needs {', '.join(_LOCAL_MODEL)}: there is no {', '.join(missing)}"


def _base_problems(name: str, model: object, base: type[BaseModel]) -> Iterator[str]:
    if model is not None and not (isinstance(model, type) and issubclass(model, base)):
        yield f"{name} does not extend {base.__module__}.{base.__name__}"
