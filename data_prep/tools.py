"""What a data module's optional `prepare` may use besides its settings."""

from collections.abc import Callable
from dataclasses import dataclass

from environments.chat import ChatModel
from environments.encoder import Encoder, EncoderSettings


@dataclass(frozen=True, slots=True)
class Tools:
    """Models that have to be loaded into this process, and a way to tell the user.

    `chat_model` takes a Hugging Face name or folder. In a dry run nothing may be loaded or asked,
    but that with `trial` each model is asked one question.
    """

    chat_model: Callable[[str], ChatModel]
    encoder: Callable[[EncoderSettings], Encoder]
    say: Callable[[str], None]
    dry_run: bool = False
    trial: bool = False
