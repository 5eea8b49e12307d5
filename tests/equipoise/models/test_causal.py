from dataclasses import replace
from importlib.util import find_spec
from unittest.mock import Mock

import pytest
import torch
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from equipoise.config import load_config
from equipoise.config.words import parse_flags
from equipoise.files.hub import model_identity
from equipoise.files.pretrained import identity_of
from equipoise.models.causal import load_model
from equipoise.run.policy import load_trained
from equipoise.train.local import trainable
from tests.refusals import refusal

FOUR_BITS = ("--lora-rank=4", "equipoise.load_in_4bit=true")


@pytest.mark.parametrize(
    ("cause", "text", "said"),
    [
        (GatedRepoError.__new__(GatedRepoError), "403 Client Error", "model.gated | HF_TOKEN"),
        (RepositoryNotFoundError.__new__(RepositoryNotFoundError), "404", "model.unknown-name"),
        (None, "no network\nlong explanation", "model.unloadable | no network"),
    ],
)
def test_a_model_that_cannot_be_had_is_one_clear_message(monkeypatch, cause, text, said):
    monkeypatch.setattr("equipoise.files.hub.offline_reason", lambda: None)
    error = OSError(text)
    error.__cause__ = cause
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", Mock(side_effect=error))
    with refusal(said, "some/model") as error:
        load_model("some/model", "some/model", dtype=torch.float32, device=torch.device("cpu"))
    assert "long explanation" not in str(error.value)


def test_a_tokenizer_from_elsewhere_makes_another_policy(tmp_path):
    model, tokenizer = tmp_path / "model", tmp_path / "tokenizer"
    for folder, text in ((model, "weights"), (tokenizer, "one template")):
        folder.mkdir()
        (folder / "chat_template.jinja").write_text(text)
    alone = identity_of(str(model), str(model))
    assert alone == model_identity(str(model))
    both = identity_of(str(model), str(tokenizer))
    (tokenizer / "chat_template.jinja").write_text("another template")
    assert len({alone, both, identity_of(str(model), str(tokenizer))}) == 3


@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="uv sync --extra 4bit")
class TestFourBits:
    @pytest.fixture
    def folder(self, tmp_path):
        """A model of two layers with the tokenizer of words that it needs."""
        torch.manual_seed(0)
        sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64}
        layout = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
        Qwen2ForCausalLM(Qwen2Config(**sizes, **layout)).save_pretrained(tmp_path / "model")
        words = Tokenizer(WordLevel({"a": 0, "<pad>": 1}, unk_token="a"))
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>")
        tokenizer.chat_template = "{{ messages[0].content }}"
        tokenizer.save_pretrained(tmp_path / "model")
        return str(tmp_path / "model")

    def load(self, folder, *, four_bit):
        own = {"dtype": torch.float32, "device": torch.device("cpu")}
        return load_model(folder, folder, **own, four_bit=four_bit)

    def test_the_layers_take_an_eighth_and_it_is_another_policy(self, folder):
        wide, narrow = (self.load(folder, four_bit=each) for each in (False, True))
        layer = narrow.model.model.layers[0].mlp.up_proj.weight
        assert layer.nbytes == wide.model.model.layers[0].mlp.up_proj.weight.nbytes / 8
        assert narrow.identity != wide.identity

    def test_a_lora_above_it_is_trained_and_loads_again_above_4_bits(self, folder, tmp_path):
        config = load_config("fairness", parse_flags("x", FOUR_BITS)).config
        base = self.load(folder, four_bit=True)
        before = base.model.model.layers[0].mlp.up_proj.weight.clone()
        model = trainable(base, config)
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.1)
        tokens = torch.arange(16)[None]
        for _ in range(3):
            optimizer.zero_grad()
            model(tokens, labels=tokens).loss.backward()
            optimizer.step()
        model.save_pretrained(tmp_path / "trained")
        again = load_trained(replace(base, model=model), tmp_path / "trained", torch.device("cpu"))
        assert torch.equal(before, model.base_model.model.model.layers[0].mlp.up_proj.weight)
        assert again.model.get_base_model().is_loaded_in_4bit
        with torch.no_grad():
            # A processor's own instructions round in their own way; the adapter moves logits by 1.
            assert torch.allclose(again.model(tokens).logits, model(tokens).logits, atol=1e-3)
            assert not torch.allclose(
                again.model(tokens).logits, self.load(folder, four_bit=True).model(tokens).logits
            )

    def test_generating_leaves_the_gradients_of_training_as_they_are(self, folder):
        """bitsandbytes packs weights for a processor that has AVX512-BF16, and none flow there."""
        tokens, gradients = torch.arange(16)[None], []
        for generates in (False, True):
            model = self.load(folder, four_bit=True).model
            if generates:
                with torch.no_grad():
                    model(tokens)
            embeddings = model.get_input_embeddings().requires_grad_(True)
            model.train()(tokens, labels=tokens).loss.backward()
            gradients.append(embeddings.weight.grad)
        assert torch.equal(*gradients)
