"""Every recipe, and `equipoise prepare`, in what users meet first.

One clear error each, nothing made, never a traceback.

A path that is missing, a GPU that is not there, no network, a dry run.
test_resume.py has runs that are interrupted.
"""

import json
import socket
import urllib.request

import pytest
import torch
from huggingface_hub import constants

from equipoise.config.compose import tasks
from equipoise.files import hub
from tests.equipoise.commands.test_start import recipe

NO_RUN = "results/<task>/<run name>"
NOT_THERE = "MISSING"
#: Of a recipe that trains: nothing of the user's, and no tracking.
OWN = ("--output-dir=OUT", "equipoise.cache_dir=CACHE", "--no-wandb")
EVALUATE = ("--output-dir=OUT", "equipoise.cache_dir=CACHE")


def words_of(words, folder):
    """The words with the places of this test in them."""
    places = {
        "MISSING": folder / "no" / "such",
        "OUT": folder / "out",
        "CACHE": folder / "cache",
        "NEW": folder / "new",
        "PROMPTS": folder / "prompts.jsonl",
        "TEXT": folder / "text.yaml",
        "CORPUS": folder / "corpus.txt",
        "INDEX": folder / "cache" / "index",
        "QUESTIONS": folder / "questions.jsonl",
    }
    told = []
    for word in words:
        for name, place in places.items():
            word = word.replace(name, str(place))
        told.append(word)
    return told


def files_in(folder):
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}


def refused(name, words, folder):
    """Return the output of a refused command: one error, no traceback; no file is left."""
    before = files_in(folder)
    result = recipe(*words_of(words, folder), name=name)
    assert result.returncode in (1, 2), result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    errors = [line for line in result.stderr.splitlines() if "error [" in line]
    assert len(errors) == 1, result.stderr
    assert len(result.stderr.splitlines()) <= 6, result.stderr
    left = files_in(folder) - before
    assert not {file for file in left if file.parts[0] != "cache"}, left
    return result.stdout + result.stderr


MISSING: list[tuple[str, tuple[str, ...], str]] = [
    ("calibrate", ("MISSING", "--output-dir=NEW"), NOT_THERE),
    ("calibrate", ("PROMPTS", "--run=MISSING"), NO_RUN),
    ("compare", ("MISSING", "MISSING", "--output-dir=NEW"), NO_RUN),
    ("convert", ("MISSING", "NEW"), NOT_THERE),
    ("doctor", ("fairness", "--offline", "--config=MISSING"), NOT_THERE),
    ("doctor", ("fairness", "--offline", "--model-name=MISSING"), "there is no folder"),
    ("export gym", ("MISSING", "--output-dir=NEW"), NO_RUN),
    ("export verifiers", ("MISSING", "--output-dir=NEW"), NO_RUN),
    ("evaluate", ("--resume=MISSING",), "results/audits/<name>"),
    *(
        ("evaluate", ("pubmedqa", *EVALUATE, *words), said)
        for words, said in (
            (("--model=MISSING",), "model.no-folder"),
            (("--adapter=MISSING",), "model.no-folder"),
            (("--model=MISSING.yaml",), "No such file"),
            (("--model=local", "--config=MISSING"), NOT_THERE),
            (("--model=local", "--system=fair=MISSING.txt"), "MISSING.txt cannot be read"),
            (("--model=local", "equipoise.data.data_path=MISSING"), NOT_THERE),
        )
    ),
    ("probe", ("fairness", *OWN, "--config=MISSING"), NOT_THERE),
    ("grpo_fairness", (*OWN, "--config=MISSING"), NOT_THERE),
    ("grpo_fairness", (*OWN, "--resume=MISSING"), NO_RUN),
    ("grpo_fairness", (*OWN, "equipoise.data.data_path=MISSING"), NOT_THERE),
    ("grpo_fairness", (*OWN, "--model-name=MISSING"), "model.no-folder"),
    ("grpo_fairness", (*OWN, "env.fairness.cases_file=MISSING"), NOT_THERE),
    ("grpo_dharma", (*OWN, "env.dharma.policy.path=MISSING"), "policy.no-rego"),
    ("grpo_dharma", (*OWN, "equipoise.data.source=MISSING"), NOT_THERE),
    (
        "grpo_pubmedqa",
        (*OWN, "equipoise.data.source=file", "equipoise.data.path=MISSING"),
        NOT_THERE,
    ),
]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Hello?", "tier": "yes"}\n')
    (tmp_path / "text.yaml").write_text("url: http://localhost:9/v1\nmodel: some\n")
    (tmp_path / "corpus.txt").write_text("Aspirin helps with pain.\n")
    options = {"A": "Aspirin", "B": "Tea", "C": "Milk", "D": "Rum"}
    questions = [{"question": f"Pain {n}?", "options": options, "answer_idx": "A"} for n in "abc"]
    lines = (json.dumps(question) + "\n" for question in questions)
    (tmp_path / "questions.jsonl").write_text("".join(lines))
    return tmp_path


OUT = "--output-dir=OUT"
DENSE = ("corpus=CORPUS", "index=INDEX", "questions.all=QUESTIONS", "retriever=dense")
#: The same of the verbs that make and seal prompts.
PREPARE: list[tuple[str, tuple[str, ...], str]] = [
    ("prepare", ("dharma", OUT, "source=MISSING"), NOT_THERE),
    ("prepare", ("pubmedqa", OUT, "source=file", "path=MISSING"), NOT_THERE),
    ("prepare", ("pubmedqa", OUT, "hub_name=MISSING"), "there is no folder MISSING"),
    (
        "prepare",
        ("rag", OUT, "corpus=MISSING", "index=NEW"),
        "MISSING is not a valid corpus: cannot be read: No",
    ),
    ("prepare", ("rag", OUT, *DENSE, "encoder.query_model=MISSING"), "encoder.unloadable"),
    ("seal", ("MISSING",), NOT_THERE),
    ("prepare", ("fairness", "num_samples=96", "--output-dir=TEXT"), "TEXT is a file"),
]


@pytest.mark.parametrize(("name", "words", "said"), [*MISSING, *PREPARE])
def test_a_missing_path(name, words, said, folder):
    told = " ".join(refused(name, words, folder).split())
    assert words_of((said,), folder)[0] in told


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="there is a GPU")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("grpo_fairness", (*OWN, "--device=cuda")),
        ("evaluate", ("pubmedqa", "--model=local", *EVALUATE, "--device=cuda")),
    ],
)
def test_cuda_without_one_is_refused_before_anything_is_made(name, words, folder):
    assert "equipoise.device is cuda, and torch finds no GPU" in refused(name, words, folder)
    assert not files_in(folder / "cache")


@pytest.fixture
def no_network(monkeypatch):
    """Every look-up of a name fails, as where there is no network; the list has the names."""
    asked: list[str] = []

    def fail(host, *_, **__):
        asked.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(urllib.request, "getproxies", dict)
    hub._unreachable.cache_clear()
    yield asked
    hub._unreachable.cache_clear()


DENSE_OF_RUN = (
    *("env.rag.retriever=dense", "env.rag.index=INDEX", "equipoise.data.corpus=CORPUS"),
    *("equipoise.data.questions.all=QUESTIONS", "equipoise.data.num_samples=3"),
)
SMALL = "--config=nemo_configs/small.yaml"
TINY = ("--config=nemo_configs/smoke.yaml", "equipoise.local_model.steps=1")
NO_NETWORK: list[tuple[str, tuple[str, ...]]] = [
    ("grpo_fairness", (*OWN, "--model-name=some/model")),
    ("grpo_pubmedqa", (*OWN, SMALL)),
    ("grpo_rag", (*OWN, *DENSE_OF_RUN)),
    ("grpo_fairness", (*OWN, *TINY, "policy.tokenizer.name=some/model")),
    ("probe", ("fairness", *OWN, "--model-name=some/model")),
    ("evaluate", ("fairness", *EVALUATE, "--model=some/model")),
    ("prepare", ("pubmedqa", OUT)),
    ("prepare", ("rag", OUT, *DENSE)),
]


@pytest.mark.parametrize(("name", "words"), NO_NETWORK)
def test_no_network_is_found_out_once(name, words, folder, no_network):
    told = refused(name, words, folder)
    assert "the Hugging Face hub cannot be reached: Name or service not known" in told
    assert "Retrying" not in told
    assert len(no_network) == 1
    assert not list(folder.glob("cache/tiny-*")), "a model was made before"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("grpo_pubmedqa", (*OWN, SMALL, "--dry-run")),
        ("evaluate", ("pubmedqa", *EVALUATE, "--model=some/model", "--dry-run")),
    ],
)
def test_a_dry_run_asks_no_network(name, words, folder, no_network):
    assert "A dry run fetches nothing." in refused(name, words, folder)
    assert not no_network


DRY: list[tuple[str, tuple[str, ...]]] = [
    *((f"grpo_{task}", (*OWN, "--dry-run")) for task in tasks()),
    ("evaluate", ("rag", "--model=local", *EVALUATE, "--dry-run")),
]


@pytest.mark.parametrize(("name", "words"), DRY)
def test_a_dry_run_shows_and_makes_nothing(name, words, folder):
    before = files_in(folder)
    result = recipe(*words_of(words, folder), name=name)
    assert result.returncode == 0, result.stderr
    assert result.stdout and not result.stderr
    made = {f for f in files_in(folder) - before if f.parts[:2] != ("cache", "rag")}
    assert not {file for file in made if not file.name.endswith(".dry-run.yaml")}
