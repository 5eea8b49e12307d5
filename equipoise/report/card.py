"""The model card: README.md beside the trained weights, made from the run's files alone.

Nothing in it is trusted: all but the template itself is escaped, as Markdown and as HTML.
The same files give the same bytes.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from markupsafe import Markup

from data_prep.files import write_text
from data_prep.records import manifest_path
from equipoise.config.yaml_text import read_yaml
from equipoise.errors import EquipoiseError
from equipoise.report.beside import probe_sections
from equipoise.report.head import (
    alerts,
    evaluated_on,
    run_name,
    run_notes,
    run_title,
    task_title,
    usage_facts,
)
from equipoise.report.renderers import escaped, fenced, grid, templates
from equipoise.report.run_files import (
    Json,
    RunFiles,
    as_list,
    as_object,
    read_object,
    read_run,
    value_at,
)
from equipoise.report.tables import (
    BAD_NEWS,
    compared,
    confidence,
    metric_names,
    outcome,
    verdict_summary,
    verdict_table,
)
from equipoise.report.words import heading, not_beaten, number, plain_name, printable
from equipoise.run.directory import RunDirectory
from equipoise.run.ledger import REPLACES
from equipoise.run.seals import leave_out

_COMMAND_LIMIT, _VALUE_LIMIT = 2000, 300
_LENGTH = "policy.generation.max_new_tokens"
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Trained:
    """How the weights were made: configuration, prompts, and PEFT's settings of an adapter.

    `base` is the base model's name on the hub, where the user says what the run does not know.
    """

    config: Json
    prompts: Json
    adapter: Json
    base: str = ""

    @property
    def megatron(self) -> bool:
        """Whether Megatron trained them, which has settings of its own."""
        return _at(self.config, "policy.megatron_cfg.enabled") is True

    @property
    def lora(self) -> Json:
        """The settings of LoRA; empty where all weights were trained."""
        key = "megatron_cfg.peft" if self.megatron else "dtensor_cfg.lora_cfg"
        settings = as_object(_at(self.config, f"policy.{key}"))
        return settings if settings.get("enabled") is True else {}

    @property
    def learning_rate(self) -> object:
        """That of the first step."""
        key = "megatron_cfg.optimizer.lr" if self.megatron else "optimizer.kwargs.lr"
        return _at(self.config, f"policy.{key}")

    def base_on_hub(self, run: RunFiles) -> str:
        """The name on the hub of the model that was trained; empty for one of this machine's."""
        model = run.provenance.get("model")
        identity = str(as_object(run.provenance.get("hashes")).get("model", ""))
        hub_name = model if identity.startswith(f"{model}@") else ""
        name = str(self.base or hub_name)
        return name if _HUB_NAME.fullmatch(name) else ""


def write_card(run_dir: Path) -> Path | None:
    """Write README.md into the run's `final_checkpoint`; None if there is no such folder.

    Raises `EquipoiseError` for a file that is damaged.
    """
    run = RunDirectory(run_dir)
    if not run.final_checkpoint.is_dir():
        return None
    path = run.final_checkpoint / "README.md"
    text = str(model_card(read_run(run_dir, replies=False), read_trained(run)))
    leave_out(run, path)
    write_text(path, text)
    return path


def read_trained(run: RunDirectory, base: str = "") -> Trained:
    """How the weights of a run were made. Raises `EquipoiseError` for a file that is damaged."""
    replaced = read_object(run.provenance).get(REPLACES)
    trained_run = RunDirectory(run.earlier / PurePosixPath(str(replaced)).name) if replaced else run
    path = trained_run.config
    try:
        config = as_object(read_yaml(path)) if path.is_file() else {}
    except (yaml.YAMLError, ValueError) as error:
        raise EquipoiseError(
            "report.damaged-config", f"{path} is damaged: {error}", "Put it back from a copy."
        ) from error
    return Trained(
        config=config,
        prompts=read_object(manifest_path(run.prompts)),
        adapter=read_object(run.final_checkpoint / "adapter_config.json"),
        base=base,
    )


def model_card(run: RunFiles, trained: Trained) -> ModelCard:
    """The card, its metadata checked by the hub's own library."""
    environment = templates(
        finalize=lambda value: value if isinstance(value, Markup) else escaped(value)
    )
    environment.filters["grid"] = grid
    text = environment.get_template("card.md.j2").render(_content(run, trained))
    metadata = card_data(run, trained).to_yaml()
    return ModelCard(f"---\n{metadata}\n---\n\n{text}\n")


# --- metadata -------------------------------------------------------------------------------------


def card_data(run: RunFiles, trained: Trained) -> ModelCardData:
    """Return the card's data for the hub: where the model comes from, and its figures."""
    base = trained.base_on_hub(run)
    results = list(_results(run))
    return ModelCardData(
        base_model=base or None,
        base_model_relation=("adapter" if trained.adapter else "finetune") if base else None,
        library_name="peft" if trained.adapter else "transformers",
        pipeline_tag="text-generation",
        tags=["equipoise", "grpo", *(["lora"] if trained.lora else []), _task(run)],
        model_name=run_name(run),
        eval_results=results or None,
    )


def _results(run: RunFiles) -> Iterator[EvalResult]:
    """The metrics after training, with their intervals and what was there before."""
    if not run.finished:
        return
    hashes = as_object(run.provenance.get("hashes"))
    split = printable(run.latest.get("split") or "")
    level = number(run.latest.get("confidence"))
    for name in metric_names(run):
        pair, row = run.pair("metrics", name), compared(run).get(name, {})
        after = pair.get("after")
        if after is None or after.value is None:
            continue
        before = pair["before"].value if "before" in pair else None
        figures = {"low": after.low, "high": after.high, "confidence": level, "before": before}
        args: dict[str, Any] = {key: n for key, n in figures.items() if n is not None}
        args |= {key: printable(row[key]) for key in ("verdict", "guard") if row.get(key)}
        yield EvalResult(
            task_type="text-generation",
            dataset_type=f"equipoise/{_task(run)}",
            dataset_name=f"{task_title(run)}, prompts of Equipoise",
            dataset_split=split or None,
            dataset_revision=printable(hashes["prompts"]) if hashes.get("prompts") else None,
            metric_type=printable(name),
            metric_name=heading(run.name_of(name)),
            metric_value=after.value,
            metric_args=args or None,
        )


def _task(run: RunFiles) -> str:
    return printable(run.provenance.get("task") or run.latest.get("task") or "run")


# --- text -----------------------------------------------------------------------------------------


def _content(run: RunFiles, trained: Trained) -> dict[str, Any]:
    """Return what the template shows, by name."""
    worse = [
        run.name_of(name)
        for name, row in compared(run).items()
        if any(row.get(key) == value for key, value, _ in BAD_NEWS)
    ]
    return {
        "title": run_title(run),
        "notes": run_notes(run),
        "outcome": outcome(run),
        "alerts": [alert.text for alert in alerts(run)],
        "evaluated_on": evaluated_on(run),
        "confidence": confidence(run),
        "verdicts": verdict_table(run),
        "verdict_summary": verdict_summary(run),
        "policies": next(iter(probe_sections(run)), None),
        "not_beaten": _not_beaten(run),
        "training": tuple(_training(run, trained)),
        "max_new_tokens": int(number(_at(trained.config, _LENGTH)) or 256),
        "adapter": bool(trained.adapter),
        "base": Markup(trained.base_on_hub(run)),  # noqa: S704  see _HUB_NAME
        "base_path": printable(trained.adapter.get("base_model_name_or_path") or "", _VALUE_LIMIT),
        "local_model": run.provenance.get("local_model") is True,
        "worse": ", ".join(worse),
        "command": fenced(_command(run)),
        "origin": tuple(_origin(run)),
    }


def _not_beaten(run: RunFiles) -> str:
    """Say which policies the trained model does not beat; empty if that was not tested."""
    policies = not_beaten(run.trivial)
    if policies is None:
        return ""
    if policies:
        return f"As good as the trained model, as far as was shown: {policies}."
    name = run.name_of(run.objective)
    # A policy whose objective is not defined is none to beat, so an empty list may be of no test.
    rows = as_object(run.trivial.get("policies")).values()
    figures = (as_object(_at(row, "metrics")).get(run.objective) for row in rows)
    if all(number(as_object(figure).get("value")) is None for figure in figures):
        return f"None of them could be measured in {name}."
    return f"The trained model is better than each of them in {name}."


def _training(run: RunFiles, trained: Trained) -> Iterator[tuple[str, str]]:
    """Yield what was trained on what and how, as far as it is known."""
    config, hashes = trained.config, as_object(run.provenance.get("hashes"))
    counts = as_object(trained.prompts.get("prompts")).items()
    # The settings of what gave reward; a folder of that machine's is none to share.
    rewards = [
        (f"Reward: {plain_name(key)}", value)
        for settings in as_object(config.get("env")).values()
        for key, value in as_object(settings).items()
        if isinstance(value, str | int | float) and not str(value).startswith(("/", "~"))
    ]
    facts = [
        ("Base model", trained.base_on_hub(run) or run.provenance.get("model")),
        ("Its identity", hashes.get("model")),
        ("Method", f"GRPO, {_method(trained)}"),
        ("Steps", _at(config, "grpo.max_num_steps")),
        ("Prompts per step", _at(config, "grpo.num_prompts_per_step")),
        ("Generations per prompt", _at(config, "grpo.num_generations_per_prompt")),
        ("Learning rate", trained.learning_rate),
        ("KL penalty", _at(config, "loss_fn.reference_policy_kl_penalty")),
        ("Prompts", ", ".join(f"{count:,} {name}" for name, count in counts if number(count))),
        ("Prompts made by", _at(trained.prompts, "about.module")),
        ("Seed", run.provenance.get("seed")),
        *rewards,
        *((name, run.provenance.get(name.lower())) for name in ("Engine", "Device")),
    ]
    yield from (
        (name, printable(value, _VALUE_LIMIT)) for name, value in facts if value not in (None, "")
    )
    yield from usage_facts(run)


def _method(trained: Trained) -> str:
    lora = trained.lora
    if not lora:
        return "all weights"
    form = "" if trained.adapter else ", merged into the base"
    four_bits = _at(trained.config, "equipoise.load_in_4bit") is True
    base = ", above a base in 4 bits (NF4), as it was measured too" if four_bits else ""
    return f"LoRA of rank {lora.get('dim')} and alpha {lora.get('alpha')}{form}{base}"


def _command(run: RunFiles) -> str:
    """The command, its files named as in a checkout, where they are of that."""
    words = [str(word) for word in as_list(run.provenance.get("command"))]
    if len(words) < 2:
        return "# the command is not known"
    root = f"{PurePosixPath(words[1]).parent.parent}/"
    return printable(
        shlex.join(["uv", "run", *(word.removeprefix(root) for word in words[1:])]), _COMMAND_LIMIT
    )


def _origin(run: RunFiles) -> Iterator[tuple[str, str]]:
    """Yield what it takes to get the same again: commit, hashes, versions."""
    git, hashes = (as_object(run.provenance.get(key)) for key in ("git", "hashes"))
    changed = " and changes to it, code.diff in the run" if git.get("dirty") else ""
    if git.get("commit"):
        yield "Commit", f"{printable(git['commit'])}{changed}"
    for name, value in hashes.items():
        if isinstance(value, str) and name != "model":
            yield f"Hash of {plain_name(name)}", printable(value)
    versions = as_object(run.provenance.get("packages")).items()
    if packages := ", ".join(f"{name} {version}" for name, version in versions):
        yield "Packages", printable(packages, _COMMAND_LIMIT)


def _at(tree: Any, path: str) -> Any:
    return value_at(tree, *path.split("."))
