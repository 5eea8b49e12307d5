"""The start of a run: the model to train, and the files that say what a run is made from."""

from collections.abc import Sequence
from pathlib import Path

from data_prep.records import manifest_path, write_prompts
from data_prep.text_files import UnsuitablePromptsError
from environments.base import PromptRecord
from equipoise.config import LOCAL_MODEL, LoadedConfig
from equipoise.files.console import Reporter
from equipoise.files.disk import write_text
from equipoise.files.errors import UsageError
from equipoise.models.hub import located, refuse_missing_tokenizer
from equipoise.run.directory import RunDirectory
from equipoise.run.ledger import code_diff, code_hash, describe_run
from equipoise.run.seals import check_part, record_files


def model_name(
    loaded: LoadedConfig,
    records: Sequence[PromptRecord],
    reporter: Reporter,
) -> str:
    """The name or folder of the model to train; `local` builds the task's tiny model.

    A packaged model is its folder, which is made once.
    """
    config = loaded.config
    if config.policy.tokenizer.name != config.policy.model_name:
        refuse_missing_tokenizer(config.policy.tokenizer.name)  # before a model is made
    if config.policy.model_name != LOCAL_MODEL:
        with reporter.progress("finding the model"):
            check_part(Path(config.policy.model_name))
            return located(config.policy.model_name, config.equipoise.cache_dir)
    maker = loaded.data_module  # which makes one: the configuration refuses any other here
    reporter.heading("Local model")
    reporter.say(maker.LOCAL_MODEL_NOTICE)
    cache = Path(config.equipoise.cache_dir).expanduser()
    reporter.say(f"It is made once, within one to five minutes, and kept in {cache}.")
    try:
        with reporter.progress("making the local model"):
            folder = maker.build_local_model(records, loaded.local_model_settings, cache)
    except UnsuitablePromptsError as error:
        raise UsageError(error.code, str(error), "Name another model with --model-name.") from error
    reporter.say(f"model: {folder}")
    return str(folder)


def start_run(
    loaded: LoadedConfig,
    records: Sequence[PromptRecord],
    run: RunDirectory,
    name: str,
) -> None:
    """Write what a new run is made from: provenance.json, code.diff, config.yaml, its prompts."""
    config = loaded.config
    provenance = describe_run(
        task=config.equipoise.task,
        run_name=name,
        engine=loaded.engine,
        model=config.policy.model_name,
        local_model=config.policy.model_name == LOCAL_MODEL,
        seed=config.grpo.seed,
    )
    provenance["hashes"]["environment"] = code_hash(loaded)
    if provenance["local_model"]:  # the report shows what the task says of it
        provenance["local_model_notice"] = loaded.data_module.LOCAL_MODEL_NOTICE
    elif stand_in := loaded.env_settings.stand_in:
        provenance["stand_in"] = stand_in
    run.ledger.create(provenance)
    if diff := code_diff():
        run.code_diff.write_bytes(diff)
    write_text(run.config, loaded.to_yaml())
    write_prompts(run.prompts, records, config.equipoise.data.model_dump())
    record_files(run, run.config, run.prompts, manifest_path(run.prompts))
