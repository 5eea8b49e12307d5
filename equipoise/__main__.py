"""The command `equipoise`: a verb for each thing that a person does.

    equipoise train TASK --config nemo_configs/local.yaml
    equipoise evaluate --task all --model NAME
    equipoise VERB --help

A verb is imported when it is asked for, so that help takes no second.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Verb:
    """What it does, and the module whose `parse_options` reads its words and `run` does it."""

    help: str
    module: str = ""


#: Of `train` and `probe` the next word is the task.
TRAIN, PROBE = "train", "probe"
VERBS: Mapping[str, Verb] = {
    TRAIN: Verb("train a model on a task, and evaluate it before and after"),
    PROBE: Verb("show what the reward of a task pays for nothing"),
    "evaluate": Verb("evaluate models without training", "equipoise.audit.evaluate_command"),
    "audit": Verb("audit answers that others published", "equipoise.audit.answers_command"),
    "compare": Verb("compare runs and models in pairs", "equipoise.audit.compare_command"),
    "gate": Verb("say whether a model is worse than another one", "equipoise.audit.gate_command"),
    "rescore": Verb("score stored replies again", "equipoise.audit.rescore_command"),
    "cold-start": Verb("fine-tune a model on replies first", "equipoise.cold_start.command"),
    "convert": Verb("make a checkpoint a model that loads", "equipoise.conversion.command"),
    "merge-lora": Verb("merge an adapter into its base", "equipoise.conversion.merge_command"),
    "push": Verb("put a run's model and its card on the hub", "equipoise.push"),
    "export-gym": Verb("export a task for NeMo Gym", "equipoise.gym.export_command"),
    "export-verifiers": Verb("export a task for verifiers", "equipoise.verifiers.export_command"),
    "doctor": Verb("find what would keep a run from working", "equipoise.doctor.command"),
}
_HELP = ("-h", "--help")


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the first word names; leaves with 0, 1 for a failure, 2 for wrong usage."""
    name, *words = (sys.argv[1:] if arguments is None else arguments) or _HELP[:1]
    if name in _HELP:
        sys.stdout.write(_usage())
        sys.exit(0)
    if name not in VERBS:
        sys.exit(_refuse(name))
    sys.argv[0] = f"equipoise {name}"  # what help calls it
    sys.path.append(str(Path.cwd()))  # a user's own task; behind ours, so that it hides nothing
    if name in (TRAIN, PROBE):
        _start_task(name, words)
        return
    if "--offline" in words:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when the Hub's client is imported
    from equipoise.terminal.exits import guarded

    verb = import_module(VERBS[name].module)
    options: Any = verb.parse_options(words)
    run: Callable[..., None] = verb.run
    sys.exit(guarded(lambda reporter: run(options, reporter)))


def _start_task(name: str, words: Sequence[str]) -> None:
    from equipoise.cli import probe_main, train_main

    start = probe_main if name == PROBE else train_main
    start(f"{VERBS[name].help[0].upper()}{VERBS[name].help[1:]}.", words)


def _usage() -> str:
    width = max(map(len, VERBS)) + 2
    verbs = "".join(f"  {name:{width}}{verb.help}\n" for name, verb in VERBS.items())
    return f"usage: equipoise VERB ...\n\n{verbs}\nequipoise VERB --help shows the words of one\n"


def _refuse(name: str) -> int:
    sys.stderr.write(f"error: there is no verb {name}\n{_usage()}")
    return 2


if __name__ == "__main__":
    main()
