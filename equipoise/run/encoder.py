"""Vectors by Hugging Face models: MedCPT's pair of encoders, or one sentence-transformers model."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from environments.contract import EncoderSettings, Vectors
from equipoise.files.hub import encoder_identity, is_folder_name, missing_reason
from equipoise.files.packaged_models import MINILM, located_encoder

_BATCH = 32
#: MedCPT was trained on queries of this length; articles and other models take more.
_QUERY_TOKENS, _PASSAGE_TOKENS = 64, 512
#: Less, from the model's own settings for sentence-transformers.
_MOST_TOKENS = {MINILM: 256}


class HuggingFaceEncoder:
    """An `Encoder` with transformers.

    Two models are taken for MedCPT's kind: the first token's state as it is, a passage as the pair
    of title and text. One model for both is taken for sentence-transformers' kind: the mean of the
    tokens' states, normalised, so that the inner product is the cosine. Raises
    `EquipoiseError` where `minilm` is named and not installed, and `OSError` for a folder that
    is not there, or a model of the hub that is not on this machine and cannot be fetched.
    """

    def __init__(self, settings: EncoderSettings) -> None:
        names = dict.fromkeys((settings.query_model, settings.passage_model))
        folders = {name: located_encoder(name) for name in names}
        for folder in folders.values():
            if is_folder_name(folder) and not Path(folder).is_dir():
                raise OSError(f"folder {folder} does not exist")
            if reason := missing_reason(folder, "config.json"):
                raise OSError(reason)
        import torch
        from transformers import AutoModel, AutoTokenizer

        self._settings = settings
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._loaded = {
            name: (
                AutoTokenizer.from_pretrained(folder, trust_remote_code=False),
                AutoModel.from_pretrained(folder, trust_remote_code=False).eval().to(self._device),
            )
            for name, folder in folders.items()
        }
        #: See `Encoder`.
        self.identity = encoder_identity(settings)

    def encode_queries(self, queries: Sequence[str]) -> Vectors:
        texts = [(query,) for query in queries]
        return self._encode(self._settings.query_model, texts, _QUERY_TOKENS)

    def encode_passages(self, passages: Sequence[tuple[str, str]]) -> Vectors:
        texts: list[tuple[str, ...]] = list(passages)
        if not self._settings.is_pair:
            texts = [(f"{title}. {text}" if title else text,) for title, text in passages]
        model = self._settings.passage_model
        return self._encode(model, texts, _MOST_TOKENS.get(model, _PASSAGE_TOKENS))

    def _encode(self, name: str, texts: Sequence[tuple[str, ...]], tokens: int) -> Vectors:
        """Longest first, so that a batch pads little; the rows come back in order."""
        order = sorted(range(len(texts)), key=lambda i: -sum(map(len, texts[i])))
        parts = [
            self._batch(name, [texts[i] for i in order[start : start + _BATCH]], tokens)
            for start in range(0, len(order), _BATCH)
        ]
        vectors = np.concatenate(parts)
        result = np.empty_like(vectors)
        result[order] = vectors
        return result

    def _batch(self, name: str, texts: Sequence[tuple[str, ...]], tokens: int) -> Vectors:
        import torch

        tokenizer, model = self._loaded[name]
        columns = [list(column) for column in zip(*texts, strict=True)]
        inputs = tokenizer(
            *columns, truncation=True, padding=True, max_length=tokens, return_tensors="pt"
        ).to(self._device)
        with torch.inference_mode():
            states = model(**inputs).last_hidden_state
            if self._settings.is_pair:
                pooled = states[:, 0]
            else:
                weights = inputs["attention_mask"].unsqueeze(-1).to(states.dtype)
                mean = (states * weights).sum(dim=1) / weights.sum(dim=1)
                pooled = torch.nn.functional.normalize(mean, dim=-1)
        vectors: Vectors = pooled.float().cpu().numpy()
        return vectors
