"""`equipoise push`: a run's model, with its card, into a repository of the hub.

It is no flag of training: what is published has been looked at before, a node that trains may have
no network, and a hub that is down must not fail a run.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from dotenv import load_dotenv
from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]
from tyro.conf import Positional

from data_prep.files import write_json, write_text
from equipoise.errors import EquipoiseError, UsageError
from equipoise.models.hub import HTTP_ERROR, WEIGHTS
from equipoise.report.card import Trained, model_card, read_trained
from equipoise.report.run_files import RunFiles, read_run
from equipoise.report.words import printable
from equipoise.run.directory import RunDirectory
from equipoise.run.resume import where_result_is
from equipoise.run.seals import check_part, open_run, unsealed_note
from equipoise.terminal.console import Column, Reporter
from equipoise.terminal.options import DryRun, RunFolder, Unsealed, option

#: Made anew for the hub, or a record of this machine's folders.
_NOT_AS_IT_IS = ("README.md", "adapter_config.json", "conversion.json")
_WAY_IN = (
    "Put a token with the right to write (huggingface.co/settings/tokens) as HF_TOKEN into .env, "
    "or run `hf auth login`."
)


@dataclass(frozen=True, slots=True)
class PushOptions:
    """Put a run's model and its card on the hub.

    The model or adapter of RUN, with its tokenizer and its model card, goes into the repository
    REPO_ID of the Hugging Face hub. The repository is private unless --public is given, and made
    where there is none. The token is that of HF_TOKEN, in the environment or in .env, or of
    `hf auth login`.

    Examples:
        equipoise push results/TASK/RUN me/my-model
        equipoise push results/TASK/RUN me/my-model --public
        equipoise push results/TASK/RUN me/my-adapter --base meta-llama/Llama-3.1-8B
    """

    run: RunFolder
    repo_id: Annotated[str, Positional, option("owner/name on the hub", "REPO_ID")]
    public: Annotated[bool, option("for everybody to see")] = False
    base: Annotated[
        str, option("the base model's name on the hub, where the run has a copy", "REPO_ID")
    ] = ""
    unsealed: Unsealed = False
    dry_run: DryRun = False


def run(options: PushOptions, reporter: Reporter) -> None:
    """Upload. Raises `EquipoiseError`, before anything is sent where that can be known."""
    load_dotenv(Path.cwd() / ".env")
    run = RunDirectory(options.run)
    _refuse_no_weights(run)
    opened = open_run(run.root, unsealed=options.unsealed)
    with reporter.progress("checking the weights"):
        weights = check_part(run.final_checkpoint, unsealed=options.unsealed)
    unsealed = (*opened.unsealed, *weights)
    files = read_run(run.root, replies=False, unsealed=unsealed)
    trained = read_trained(run, options.base)
    _refuse_names(options)
    _refuse_local_base(run, files, trained)
    if unsealed:
        reporter.warn(f"{unsealed_note(unsealed)} The model card says so.")
    if options.dry_run:
        _dry_run(options, run, files, trained, reporter)
        return
    if get_token() is None:
        raise UsageError("push.no-token", "there is no token for the Hugging Face hub", _WAY_IN)
    if not files.finished:
        reporter.warn("this run has no final evaluation: its card says so, and has no figures")
    api = HfApi()
    with _explained(options.repo_id), tempfile.TemporaryDirectory() as scratch:
        _stage(run, files, trained, Path(scratch))
        api.create_repo(options.repo_id, private=not options.public, exist_ok=True)
        private = bool(api.model_info(options.repo_id).private)
        _refuse_to_show(options, private)
        reporter.say(f"uploading {run.final_checkpoint} to {options.repo_id}")
        message = f"Equipoise's run {run.root.resolve().name}"
        api.upload_folder(repo_id=options.repo_id, folder_path=scratch, commit_message=message)
    url = f"{api.endpoint}/{options.repo_id}"
    reporter.say(f"{'private' if private else 'public'}: {url}")


def _dry_run(
    options: PushOptions, run: RunDirectory, files: RunFiles, trained: Trained, reporter: Reporter
) -> None:
    """Show what would be uploaded; the hub is not asked, so whether it takes that is not known."""
    with tempfile.TemporaryDirectory() as scratch:
        _stage(run, files, trained, Path(scratch))
        parts = sorted(path for path in Path(scratch).rglob("*") if path.is_file())
        rows = [
            (str(part.relative_to(scratch)), f"{part.stat().st_size / 1e6:,.1f} MB")
            for part in parts
        ]
    columns = [Column("file", folds=True), Column("size")]
    reporter.table(f"What would be uploaded to {options.repo_id}", columns, rows)
    reporter.say(f"{'public' if options.public else 'private'}, where it is a new repository")
    if get_token() is None:
        reporter.warn(f"there is no token for the Hugging Face hub. {_WAY_IN}")


def _refuse_no_weights(run: RunDirectory) -> None:
    folder = run.final_checkpoint
    if not folder.is_dir() or not any(file.suffix in WEIGHTS for file in folder.iterdir()):
        hint = f"; {where}" if (where := where_result_is(run)) else ""
        raise UsageError(
            "push.no-weights",
            f"{run.root} has no model to push: there are no weights in {folder.name}/{hint}",
            "Name the folder of a run, results/<task>/<run name>, that has ended; --resume "
            "finishes one, and `equipoise convert` makes a model of a checkpoint.",
        )


def _refuse_local_base(run: RunDirectory, files: RunFiles, trained: Trained) -> None:
    """An adapter whose base nobody else has is of no use to anybody else."""
    if trained.adapter and not trained.base_on_hub(files):
        base = printable(trained.adapter.get("base_model_name_or_path") or "a local model")
        raise UsageError(
            "push.local-base",
            f"the adapter's base is {base}, which is on this machine alone",
            "If it is a copy of a model of the hub, name that with --base. Otherwise merge it, "
            f"`equipoise merge-lora {run.root} DEST`, and upload DEST: "
            "`hf upload REPO_ID DEST --private --exclude conversion.json`.",
        )


def _refuse_names(options: PushOptions) -> None:
    for name in filter(None, (options.repo_id, options.base)):
        try:
            validate_repo_id(name)
        except HFValidationError as error:
            raise UsageError(
                "push.invalid-name",
                f"{printable(name)} is no name on the hub: {error}",
                "It takes OWNER/NAME.",
            ) from None


def _refuse_to_show(options: PushOptions, private: bool) -> None:
    if not (private or options.public):
        raise UsageError(
            "push.public-repository",
            f"{options.repo_id} exists and is public",
            "Nothing was uploaded. Choose another name, make it private on the hub, or add "
            "--public.",
        )


def _stage(run: RunDirectory, files: RunFiles, trained: Trained, folder: Path) -> None:
    """The folder as the hub shall have it; what is large is only pointed to."""
    for file in run.final_checkpoint.rglob("*"):
        name = file.relative_to(run.final_checkpoint)
        if file.is_file() and str(name) not in _NOT_AS_IT_IS:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).symlink_to(file.resolve())
    if trained.adapter:
        base = {"base_model_name_or_path": trained.base_on_hub(files)}
        write_json(folder / "adapter_config.json", {**trained.adapter, **base})
    write_text(folder / "README.md", str(model_card(files, trained)))


@contextmanager
def _explained(repo_id: str) -> Iterator[None]:
    """Inside, what the hub refuses becomes one message with the remedy; no token is in it."""
    try:
        yield
    except OfflineModeIsEnabled:
        raise UsageError(
            "push.offline", "HF_HUB_OFFLINE keeps from asking the hub", "Unset it."
        ) from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        reason = f"HTTP {status}"
        reason += f", {printable(error.server_message)}" if error.server_message else ""
        if status in (401, 403, 404):  # the hub says 404 of what a token may not see
            raise EquipoiseError(
                "push.forbidden",
                f"the hub does not let this token write to {repo_id} ({reason})",
                f"Is the owner's name right, and yours or an organisation's of yours? {_WAY_IN}",
            ) from error
        raise EquipoiseError(
            "push.refused-upload",
            f"the hub did not take the model for {repo_id} ({reason})",
            "Nothing was published in part: a commit is there whole or not at all. Start it again.",
        ) from error
    except (HTTP_ERROR, ConnectionError, RuntimeError) as error:  # of API and storage
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise EquipoiseError(
            "push.failed-upload",
            f"the upload to {repo_id} failed: {printable(reason)}",
            "Look at the network, and at HF_ENDPOINT if you have set it, then start it again: what "
            "was uploaded is not sent twice.",
        ) from error
