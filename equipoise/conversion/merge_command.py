"""`recipes/merge_lora.py`: its command line, and what it does."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from equipoise.models.libraries import prepare_torch, quiet_transformers
from equipoise.run.kept_files import UNSEALED, UNSEALED_HELP
from equipoise.terminal.console import Reporter

_DESCRIPTION = """\
Merge a LoRA adapter into its base: W + (alpha / r) B A, in float32 and then in the base's format.
ADAPTER is a folder of PEFT's, a step of NeMo-RL's (DTensor or Megatron), or a run. It is what
recipes/convert.py does with an adapter; here anything else is refused.
"""
_EXAMPLES = """\
examples:
  uv run recipes/merge_lora.py results/TASK/RUN my-model
  uv run recipes/merge_lora.py my-adapter my-model --base Qwen/Qwen2.5-0.5B-Instruct
"""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for."""

    adapter: Path
    destination: Path
    base: str | None
    unsealed: bool
    dry_run: bool = False


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """Read the command line; wrong usage ends the program with code 2."""
    parser = argparse.ArgumentParser(
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("adapter", type=Path, metavar="ADAPTER", help="what training wrote")
    parser.add_argument("destination", type=Path, metavar="DEST", help="a new folder")
    parser.add_argument(
        "--base",
        metavar="MODEL",
        help="folder or name on the hub of the model that the adapter was trained on, where it "
        "does not name it or where that is elsewhere now",
    )
    parser.add_argument(UNSEALED, action="store_true", help=UNSEALED_HELP)
    parser.add_argument(
        "--dry-run", action="store_true", help="say what ADAPTER is, and merge nothing"
    )
    return Options(**vars(parser.parse_args(arguments)))


def run(options: Options, reporter: Reporter) -> None:
    """Merge. Raises `EquipoiseError`."""
    prepare_torch(threads=None)
    quiet_transformers()
    # torch and transformers take seconds to import; --help should not wait for them.
    from equipoise.conversion.sources import ADAPTERS, describe, open_source
    from equipoise.conversion.tensors import refuse
    from equipoise.conversion.to_hugging_face import convert, show_source

    source = open_source(options.adapter, unsealed=options.unsealed)
    if source.form not in ADAPTERS:
        refuse(f"{describe(source)}: this is no adapter", "recipes/convert.py converts models.")
    unsealed = options.unsealed
    if options.dry_run:
        show_source(options.adapter, options.destination, reporter, unsealed=unsealed)
        reporter.say(f"base: {options.base or source.base or 'not named: give it with --base'}")
        return
    convert(options.adapter, options.destination, reporter, base=options.base, unsealed=unsealed)
