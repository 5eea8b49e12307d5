"""`equipoise merge-lora`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from equipoise.models.libraries import prepare_torch, quiet_transformers
from equipoise.terminal.console import Reporter
from equipoise.terminal.options import Destination, DryRun, Unsealed, option


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """Merge a LoRA adapter into its base.

    W + (alpha / r) B A, in float32 and then in the base's format. ADAPTER is a folder of PEFT's, a
    step of NeMo-RL's (DTensor or Megatron), or a run. It is what `equipoise convert` does with an
    adapter; here anything else is refused.

    Examples:
        equipoise merge-lora results/TASK/RUN my-model
        equipoise merge-lora my-adapter my-model --base Qwen/Qwen2.5-0.5B-Instruct
    """

    adapter: Annotated[Path, Positional, option("what training wrote", "ADAPTER")]
    destination: Destination
    base: Annotated[
        str | None, option("the model that it was trained on, where that is elsewhere now", "MODEL")
    ] = None
    unsealed: Unsealed = False
    dry_run: DryRun = False


def run(options: MergeOptions, reporter: Reporter) -> None:
    """Merge. Raises `EquipoiseError`."""
    prepare_torch(threads=None)
    quiet_transformers()
    # torch and transformers take seconds to import; --help should not wait for them.
    from equipoise.checkpoints.sources import ADAPTERS, describe, open_source
    from equipoise.checkpoints.tensors import refuse
    from equipoise.checkpoints.to_hugging_face import convert, show_source

    source = open_source(options.adapter, unsealed=options.unsealed)
    if source.form not in ADAPTERS:
        refuse(f"{describe(source)}: this is no adapter", "`equipoise convert` converts models.")
    unsealed = options.unsealed
    if options.dry_run:
        show_source(options.adapter, options.destination, reporter, unsealed=unsealed)
        reporter.say(f"base: {options.base or source.base or 'not named: give it with --base'}")
        return
    convert(options.adapter, options.destination, reporter, base=options.base, unsealed=unsealed)
