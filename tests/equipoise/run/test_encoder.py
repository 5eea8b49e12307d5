"""Encoders with tiny random models: pooling, order, padding, identity."""

import numpy as np
import pytest
from transformers import BertConfig, BertModel, BertTokenizerFast

from environments.contract import EncoderSettings
from equipoise.files.hub import encoder_identity
from equipoise.run.encoder import HuggingFaceEncoder

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "amber", "ribbed", "stone", "origin", "."]
TEXTS = ["amber stone", "amber ribbed stone origin", "stone", "origin origin origin origin origin"]


def save_model(folder, seed):
    import torch

    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    BertModel(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return save_model(folder / "queries", 0), save_model(folder / "passages", 1)


def single(name):
    return HuggingFaceEncoder(EncoderSettings(query_model=name, passage_model=name))


def test_one_model_gives_normalised_means(models):
    encoder = single(models[0])
    vectors = encoder.encode_queries(TEXTS)
    assert vectors.dtype == np.float32
    assert vectors.shape == (4, 16)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(4), abs=1e-5)
    passages = encoder.encode_passages([("", text) for text in TEXTS])
    assert passages == pytest.approx(vectors, abs=1e-5)


def test_rows_come_back_in_order_whatever_stands_beside_them(models):
    encoder = single(models[0])
    together = encoder.encode_queries(TEXTS)
    alone = np.concatenate([encoder.encode_queries([text]) for text in TEXTS])
    assert together == pytest.approx(alone, abs=1e-5)  # padding changes nothing


def test_two_models_give_the_first_token_of_title_and_text(models):
    import torch
    from transformers import AutoModel, AutoTokenizer

    encoder = HuggingFaceEncoder(EncoderSettings(query_model=models[0], passage_model=models[1]))
    tokenizer = AutoTokenizer.from_pretrained(models[1])
    model = AutoModel.from_pretrained(models[1]).eval()
    with torch.inference_mode():
        inputs = tokenizer("amber", "ribbed stone", return_tensors="pt")
        expected = model(**inputs).last_hidden_state[:, 0].numpy()
    assert encoder.encode_passages([("amber", "ribbed stone")]) == pytest.approx(expected, abs=1e-5)
    assert encoder.encode_queries(["amber"]) != pytest.approx(
        encoder.encode_passages([("", "amber")]), abs=1e-3
    )


def test_the_identity_tells_models_and_pooling_apart(models):
    pair = EncoderSettings(query_model=models[0], passage_model=models[1])
    one = EncoderSettings(query_model=models[0], passage_model=models[0])
    assert len({encoder_identity(pair), encoder_identity(one)}) == 2
    assert HuggingFaceEncoder(pair).identity == encoder_identity(pair)
    assert "first token" in encoder_identity(EncoderSettings())
