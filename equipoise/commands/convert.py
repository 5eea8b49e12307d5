"""`equipoise convert`."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional

from equipoise.config.words import Destination, option
from equipoise.files.console import Reporter
from equipoise.files.errors import UsageError
from equipoise.files.hub import prepare_torch, quiet_transformers
from equipoise.run.seals import checkpoint_at


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """Make a checkpoint a model that loads.

    A model of Hugging Face's of a checkpoint: of a run, of NeMo-RL (DTensor or Megatron, whole or
    LoRA), of PEFT, or of NeMo 2; or of any of these, and of Hugging Face's, what NeMo-RL's
    Megatron backend starts from, which Megatron-Bridge writes. An adapter is merged into its base:
    W + (alpha / r) B A, in float32 and then in the base's format. The kind of SOURCE is detected;
    DEST appears whole or not at all. No GPU is needed, and little more memory than the largest
    tensor takes (Megatron-Bridge holds the model); a model that fits into free memory is loaded
    once to check its logits.

    Examples:
        equipoise convert results/TASK/RUN my-model
        equipoise convert results/TASK/RUN/checkpoints/step_200 my-model
        equipoise convert my-adapter my-model --base Qwen/Qwen2.5-0.5B-Instruct
        equipoise convert iter_0000200 my-model --base Qwen/Qwen2.5-0.5B-Instruct
        equipoise convert my-model my-model-megatron --to megatron
    """

    source: Annotated[Path, Positional, option("a checkpoint, or a run's folder", "SOURCE")]
    destination: Destination
    to: Annotated[
        Literal["hf", "megatron"],
        option("Hugging Face's form, or Megatron's for policy.pretrained_checkpoint"),
    ] = "hf"
    base: Annotated[
        str | None, option("the model that training began with, where SOURCE names none", "MODEL")
    ] = None
    adapter: Annotated[bool, option("keep a LoRA adapter one, in PEFT's form")] = False


def run(options: ConvertOptions, reporter: Reporter) -> None:
    if options.to == "megatron" and options.adapter:
        raise UsageError(
            "convert.exclusive-options",
            "--adapter keeps an adapter in PEFT's form, and --to megatron makes a model",
            "Leave out one of them.",
        )
    prepare_torch(threads=None)
    quiet_transformers()
    # torch and transformers take seconds to import; --help should not wait for them.
    from equipoise.checkpoints.convert import convert, convert_to_megatron

    write = (
        partial(convert, keep_adapter=options.adapter)
        if options.to == "hf"
        else convert_to_megatron
    )
    write(
        checkpoint_at(options.source),
        options.destination,
        base=options.base,
        progress=reporter.progress,
    )
