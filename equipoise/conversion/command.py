"""`recipes/convert.py`: its command line, and what it does."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from equipoise.models.libraries import prepare_torch, quiet_transformers
from equipoise.run.kept_files import UNSEALED, UNSEALED_HELP
from equipoise.terminal.console import Reporter

_DESCRIPTION = """\
Make a model of Hugging Face's of a checkpoint: of a run, of NeMo-RL (DTensor or Megatron, whole or
LoRA), of PEFT, or of NeMo (.nemo, NeMo 2); or make of any of these, and of Hugging Face's, what
NeMo-RL's Megatron backend starts from, which Megatron-Bridge writes. What SOURCE is, is found by
looking; DEST appears whole or not at all, and every byte of it is read back. No GPU is needed, and
little more memory than the largest tensor takes (Megatron-Bridge holds the model); a model that
fits into what is free is loaded once and asked.
"""
_EXAMPLES = """\
examples:
  uv run recipes/convert.py results/TASK/RUN my-model
  uv run recipes/convert.py results/TASK/RUN/checkpoints/step_200 my-model
  uv run recipes/convert.py iter_0000200 my-model --base Qwen/Qwen2.5-0.5B-Instruct
  uv run recipes/convert.py model.nemo my-model
  uv run recipes/convert.py my-model my-model-megatron --to megatron
"""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for."""

    source: Path
    destination: Path
    to: Literal["hf", "megatron"]
    base: str | None
    adapter: bool
    verify: bool
    unsealed: bool
    dry_run: bool = False


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """Read the command line; wrong usage ends the program with code 2."""
    parser = argparse.ArgumentParser(
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "source", type=Path, metavar="SOURCE", help="a checkpoint, or a run's folder"
    )
    parser.add_argument("destination", type=Path, metavar="DEST", help="a new folder")
    parser.add_argument(
        "--to",
        choices=("hf", "megatron"),
        default="hf",
        help="Hugging Face's form (default), or Megatron's for policy.pretrained_checkpoint",
    )
    parser.add_argument(
        "--base",
        metavar="MODEL",
        help="folder or name on the hub of the model that training began with, where SOURCE does "
        "not name it",
    )
    parser.add_argument(
        "--adapter",
        action="store_true",
        help="keep a LoRA adapter one, in PEFT's form, and do not merge it into its base",
    )
    parser.add_argument(
        "--verify",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compare the source's checksums, read back every byte that is written, and load the "
        "model where it fits into memory",
    )
    parser.add_argument(UNSEALED, action="store_true", help=UNSEALED_HELP)
    parser.add_argument(
        "--dry-run", action="store_true", help="say what SOURCE is, and convert nothing"
    )
    options = Options(**vars(parser.parse_args(arguments)))
    if options.to == "megatron" and options.adapter:
        parser.error("--adapter keeps an adapter in PEFT's form, and --to megatron makes a model")
    return options


def run(options: Options, reporter: Reporter) -> None:
    """Convert. Raises `EquipoiseError`."""
    prepare_torch(threads=None)
    quiet_transformers()
    if options.dry_run:
        # It brings torch.
        from equipoise.conversion.to_hugging_face import show_source

        show_source(options.source, options.destination, reporter, unsealed=options.unsealed)
        return
    # torch and transformers take seconds to import; --help should not wait for them.
    from equipoise.conversion.to_hugging_face import convert
    from equipoise.conversion.to_megatron import convert_to_megatron

    source, destination, base = options.source, options.destination, options.base
    check, unsealed = options.verify, options.unsealed
    if options.to == "megatron":
        convert_to_megatron(
            source, destination, reporter, base=base, check=check, unsealed=unsealed
        )
    else:
        convert(
            source,
            destination,
            reporter,
            base=base,
            keep_adapter=options.adapter,
            verify=check,
            unsealed=unsealed,
        )
