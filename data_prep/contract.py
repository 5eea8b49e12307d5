"""The contract of a task's data: the class that makes its prompts.

A task's YAML names the class in `equipoise.data.module`. It has the settings of its prompts, which
extend `DataSettings`, and makes them:

    class BriefData(DataModule):
        class PromptSettings(DataSettings):
            num_samples: int = 120

        def build_prompts(self, settings):
            return [PromptRecord(...) for i in range(settings.num_samples)]

Everything else has a default. Importing the class must stay cheap: torch is imported where it is
needed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, Field

from environments.base import Message, PromptRecord
from environments.chat import ChatModel
from environments.contract import Encoder, EncoderSettings


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
        """The reason why the local model cannot read the prompts, with the remedy; else empty."""
        return ""

    @property
    def no_training(self) -> str:
        """The reason for having no prompt to train on, with the remedy; empty otherwise."""
        return ""

    @property
    def training_prompts(self) -> int | None:
        """The number of prompts to train on; None where only making them tells."""
        return None


# --- the local model -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt with the answer that is imitated."""

    messages: tuple[Message, ...]
    answer: str


class WarmStart(BaseModel, extra="forbid", frozen=True):
    """A tiny Llama from random weights, which imitates `steps * batch_size` replies.

    A task's `LocalModelSettings` are these keys with defaults of its own, and what else it needs.
    """

    vocab_size: int = Field(2048, ge=300)  #: of its tokenizer, to which phrases are added
    phrases: bool = Field(
        default=True, description="tokens may span words; without, each word is its own"
    )
    form: tuple[str, ...] = Field(
        (), description="pieces of every prompt or reply that are one token each"
    )
    hidden_size: int = Field(64, ge=16, multiple_of=16)  #: width of a layer
    layers: int = Field(2, ge=1)  #: of attention and feed-forward
    heads: int = Field(4, ge=1)  #: of each layer's attention
    max_positions: int = Field(512, ge=1)  #: tokens of prompt and reply
    steps: int = Field(700, ge=1)  #: updates
    batch_size: int = Field(32, ge=1)  #: replies of one update
    initializer_range: float = Field(
        0.02, gt=0, le=1, description="spread of the random weights; copying needs more"
    )
    learning_rate: float = Field(1e-2, gt=0, lt=1)  #: at its peak; ends at zero
    seed: int = Field(0, ge=0)  #: of weights and replies


# --- the task's class ----------------------------------------------------------------------------


class DataModule(ABC):
    """The prompts of a task, and a small model that machines without a GPU train on them.

    `settings` is always an instance of `PromptSettings`, but for a local model: one of
    `LocalModelSettings`. `offers` asks for a method, as `offers(DataModule.prepare)`.
    """

    PromptSettings: ClassVar[type[DataSettings]] = DataSettings
    #: The keys of `equipoise.local_model`; None without a local model.
    LocalModelSettings: ClassVar[type[WarmStart] | None] = None
    #: One paragraph: what the local model is, and what it says nothing about.
    LOCAL_MODEL_NOTICE: ClassVar[str] = ""

    @classmethod
    def offers(cls, method: Callable[..., Any]) -> bool:
        """Whether a method has been written for this task."""
        return getattr(cls, method.__name__) is not method

    @abstractmethod
    def build_prompts(self, settings: Any) -> list[PromptRecord]:
        """Make the prompts, from nothing but the settings and what `prepare` made.

        Each has its split (see `environments.base`), and counterfactual sets are whole. Raises
        `ValueError` where they cannot be made, with the remedy.
        """

    def prompt_problems(self, records: Sequence[PromptRecord]) -> Sequence[str]:
        """List why prompts from any source cannot be scored or trained on; see `named_faults`."""
        return ()

    def prepare(self, settings: Any, tools: Tools) -> None:  # noqa: B027  a task may need nothing
        """Make what prompts need first: an index, plans of a model. Raises `ValueError`."""

    def imitated_replies(
        self, records: Sequence[PromptRecord], settings: Any
    ) -> Sequence[tuple[PromptRecord, str]]:
        """Return prompts, each with a reply from which any model can learn the form of reply.

        The local model is trained on them. There are `steps * batch_size` of `settings`, and none
        is of an evaluation split of `records`. Raises `UnsuitablePromptsError` for records to which
        it knows no reply.
        """
        raise NotImplementedError


def unfit_data(data: Any) -> str:
    """Say why a class makes no prompts for a task; empty where it does."""
    if not (isinstance(data, type) and issubclass(data, DataModule)):
        return "does not extend data_prep.contract.DataModule"
    if missing := sorted(data.__abstractmethods__):
        return f"has no {', '.join(missing)}"
    if not issubclass(data.PromptSettings, DataSettings):
        return "has PromptSettings that do not extend data_prep.contract.DataSettings"
    if data.LocalModelSettings is None:
        return ""
    if not (data.LOCAL_MODEL_NOTICE and data.offers(DataModule.imitated_replies)):
        return "has LocalModelSettings without LOCAL_MODEL_NOTICE and imitated_replies"
    return ""
