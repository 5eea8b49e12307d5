"""The words of training, which every verb has that loads a run's configuration.

A named flag is a short way to set one key, or a few that belong together.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal, get_type_hints

from tyro.conf import Positional, arg, create_mutex_group

from equipoise.config.flags import CONFIG_FOLDER, Options, Setting, tasks
from equipoise.files.errors import UsageError
from equipoise.files.options import Assignments, Files, option, read_options

#: --model-size -> the model, and the scale that suits it unless --config names another.
MODEL_SIZES = {
    "small": ("Qwen/Qwen2.5-0.5B-Instruct", "small.yaml"),
    "base": ("Qwen/Qwen2.5-1.5B-Instruct", "small.yaml"),
    "large": ("meta-llama/Llama-3.3-70B-Instruct", "large.yaml"),
}
_SIZES = ", ".join(f"{size} = {name}" for size, (name, _) in MODEL_SIZES.items())
_LORA = "policy.dtensor_cfg.lora_cfg"
_MODEL = create_mutex_group(required=False, title="the model")


def sets(key: str, metavar: str | None = None, help: str = "") -> tuple[object, ...]:  # noqa: A002
    """Describe a flag that sets a key, which its help names."""
    return key, option(f"{help} ({key})" if help else key, metavar)


@dataclass(frozen=True, slots=True)
class TrainingWords:
    """Train a model on a task, and evaluate it before and after.

    what wins:
      nemo_configs/base.yaml, the scale, nemo_configs/tasks/<task>.yaml, tasks/<task>.<scale>.yaml
      where there is one, your own --config files in their order, then the named flags, then
      key=value. A YAML of your own needs only the keys that it changes.

    keys:
      the task's own are equipoise.data.* (its prompts) and env.<name>.* (its reward), with their
      meaning in docs/<task>.md; docs/configuration.md has the others. A key that does not exist is
      answered with the nearest one.

    Examples:
        equipoise train TASK    # the small local model on this machine
        equipoise train TASK --config nemo_configs/small.yaml    # a 0.5B model on one GPU
        equipoise train TASK --config nemo_configs/small.yaml --config mine.yaml --run-name mine
        equipoise train TASK --iterations 20 --seed 1 grpo.num_generations_per_prompt=16
        equipoise train TASK --config nemo_configs/large.yaml --dry-run
        equipoise train TASK --resume results/TASK/RUN
    """

    assignments: Assignments = ()
    version: Annotated[bool, option("show the version of Equipoise")] = False
    config: Annotated[
        Files,
        option(
            "a scale or a YAML of your own; may be repeated, later ones win "
            "(default: nemo_configs/local.yaml, or the scale that suits the model)",
            "FILE",
        ),
    ] = ()
    output_dir: Annotated[
        str | None, *sets("equipoise.output_dir", "DIR", "where <task>/<run name> goes")
    ] = None
    run_name: Annotated[
        str | None, *sets("equipoise.run_name", "NAME", "default: the model with date and time")
    ] = None
    resume: Annotated[Path | None, option("continue the run in this folder", "DIR")] = None
    seed: Annotated[int | None, *sets("grpo.seed", "S")] = None
    dry_run: Annotated[bool, option("show what would run, and start nothing")] = False
    ask: Annotated[
        bool, option("with --dry-run: ask every other model one question, as every run does")
    ] = False
    planner_only: Annotated[
        bool, option("make the index and the plans that the task's prompts need, and stop")
    ] = False
    rehearse: Annotated[
        bool,
        option(
            "take the resolved configuration through NeMo-RL's real loop on this CPU, with a tiny "
            "model for a few steps; needs a checkout of NeMo-RL at NEMO_RL_PATH"
        ),
    ] = False
    model_size: Annotated[
        Literal[tuple(MODEL_SIZES)] | None,  # type: ignore[valid-type]
        _MODEL,
        option(
            f"{_SIZES}; without --config, small and base bring nemo_configs/small.yaml, "
            "large brings nemo_configs/large.yaml",
            "SIZE",
        ),
    ] = None
    model_name: Annotated[
        str | None,
        _MODEL,
        *sets(
            "policy.model_name",
            "NAME",
            "a Hugging Face name, a folder or smollm2; without --config it brings "
            "nemo_configs/small.yaml",
        ),
    ] = None
    lora_rank: Annotated[int | None, option("train a LoRA of this rank, alpha = 2 R", "R")] = None
    num_samples: Annotated[
        int | None, *sets("equipoise.data.num_samples", "N", "prompts to make")
    ] = None
    iterations: Annotated[int | None, *sets("grpo.max_num_steps", "N", "GRPO steps")] = None
    batch_size: Annotated[
        int | None,
        *sets(
            "grpo.num_prompts_per_step",
            "N",
            "prompts per step; the update takes all their generations",
        ),
    ] = None
    learning_rate: Annotated[float | None, *sets("policy.optimizer.kwargs.lr", "LR")] = None
    engine: Annotated[
        Literal["auto", "local", "nemo_rl"] | None,
        *sets(
            "equipoise.engine",
            "NAME",
            "local is TRL on a CPU or one GPU; auto takes nemo_rl where it is installed and CUDA "
            "is there, or where the configuration asks for several GPUs",
        ),
    ] = None
    use_nemo: Annotated[bool, option("the same as --engine nemo_rl")] = False
    device: Annotated[
        Literal["cpu", "cuda"] | None, *sets("equipoise.device", help="of the local engine")
    ] = None
    wandb_entity: Annotated[
        str | None, *sets("logger.wandb.entity", "NAME", "turns tracking on")
    ] = None
    wandb_project: Annotated[
        str | None, *sets("logger.wandb.project", "NAME", "turns tracking on")
    ] = None
    no_wandb: Annotated[bool, option("turns tracking off")] = False

    def as_options(self) -> Options:
        """Translate them to options. Raises `UsageError` where two contradict."""
        if self.version:
            version = "unknown (not installed as a package)"  # as in NeMo-RL's Python
            with suppress(metadata.PackageNotFoundError):
                version = metadata.version("equipoise")
            sys.stdout.write(f"equipoise {version}\n")
            sys.exit(0)
        if contradiction := next(self._contradictions(), ""):
            raise UsageError("config.contradictory-flags", contradiction, "")
        scale = "small.yaml" if self.model_name else "local.yaml"
        if self.model_size:
            scale = MODEL_SIZES[self.model_size][1]
        files = self.config or (CONFIG_FOLDER / scale,)
        return Options(
            config_files=(self.resume / "config.yaml",) if self.resume else files,
            settings=tuple(self._settings()),
            assignments=self.assignments,
            resume=self.resume,
            dry_run=self.dry_run,
            ask=self.ask,
            rehearse=self.rehearse,
            planner_only=self.planner_only,
        )

    def _contradictions(self) -> Iterator[str]:
        if self.use_nemo and self.engine not in (None, "nemo_rl"):
            yield f"--use-nemo contradicts --engine {self.engine}"
        if self.no_wandb and (self.wandb_entity or self.wandb_project):
            yield "--no-wandb contradicts --wandb-entity and --wandb-project"
        if self.planner_only and (self.dry_run or self.rehearse):
            yield "--planner-only asks the planner and stops: give it alone"
        if self.ask and not self.dry_run:
            yield "--ask is for --dry-run: a run asks anyway before it generates"
        if self.rehearse and self.dry_run:
            yield "--rehearse runs and --dry-run starts nothing: take one of them"
        if self.rehearse and self.engine == "local":
            yield "--rehearse is for NeMo-RL and contradicts --engine local"
        if self.resume and self.config:
            yield "--resume takes the configuration of the run and contradicts --config"

    def _settings(self) -> Iterator[Setting]:
        """Yield the flags' settings."""
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            key = next((part for part in hint.__metadata__ if isinstance(part, str)), None)
            if key and getattr(self, name) is not None:
                yield Setting(f"--{name.replace('_', '-')}", key, getattr(self, name))
        if self.model_size:
            yield Setting("--model-size", "policy.model_name", MODEL_SIZES[self.model_size][0])
        if self.use_nemo or self.rehearse:
            flag = "--use-nemo" if self.use_nemo else "--rehearse"
            yield Setting(flag, "equipoise.engine", "nemo_rl")
        if self.lora_rank is not None:
            yield Setting("--lora-rank", f"{_LORA}.enabled", True)
            yield Setting("--lora-rank", f"{_LORA}.dim", self.lora_rank)
            yield Setting("--lora-rank", f"{_LORA}.alpha", 2 * self.lora_rank)
        if self.batch_size is not None:
            product = "${mul:${grpo.num_prompts_per_step},${grpo.num_generations_per_prompt}}"
            yield Setting("--batch-size", "policy.train_global_batch_size", product)
        if self.no_wandb:
            yield Setting("--no-wandb", "logger.wandb_enabled", False)
        elif self.wandb_entity or self.wandb_project:
            flag = "--wandb-entity" if self.wandb_entity else "--wandb-project"
            yield Setting(flag, "logger.wandb_enabled", True)


#: Their flags are those of the verb that has them.
Training = Annotated[TrainingWords, arg(name="")]
#: None where the first word is missing, see `check_task`.
Task = Annotated[str | None, Positional, option(f"one of {', '.join(tasks())}", "TASK")]


def parse_flags(description: str, words: Sequence[str]) -> Options:
    return read_options(TrainingWords, words, about=description).as_options()
