"""The small model of the PubMedQA task, which imitates a hasty reader of invented abstracts."""

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from data_prep.contract import WarmStart
from data_prep.pubmedqa.invented import hasty_reply, training_abstracts
from data_prep.pubmedqa.prompts import prompt_record
from environments.base import TRAIN_SPLIT, PromptRecord
from equipoise.files.records import UnsuitablePromptsError

LOCAL_MODEL_NOTICE = (
    "The local model is a very small language model, trained from random weights to imitate an "
    "invented reader of invented abstracts who often stops at the first finding in place of the "
    "one that was asked for. It exists to show and to test the pipeline on a machine without a "
    "GPU. Its accuracy, and what training does to it, say nothing of PubMedQA, of any clinical "
    "model or of any drug."
)


#: A third of the tokens of a prompt and its reply, and nothing that has to be read. None ends in a
#: space: a word is the same token after them as anywhere else.
_FORM = (
    *("Context:\nMETHODS:", " was given to", ".\nRESULTS:", "\n\nQuestion:"),
    *(" (primary)", " (secondary)", " (P=."),
    *('<reasoning>"', '" It went', ", and", " was asked for.</reasoning>\n<answer>", "</answer>"),
)


class LocalModelSettings(WarmStart, frozen=True):
    """The local model, which imitates a hasty reader."""

    vocab_size: int = Field(800, ge=300)
    phrases: bool = False
    form: tuple[str, ...] = _FORM
    layers: int = Field(3, ge=1)
    initializer_range: float = Field(0.1, gt=0, le=1)
    steps: int = Field(1600, ge=1)
    learning_rate: float = Field(5e-3, gt=0, lt=1)


def imitated_replies(
    records: Sequence[PromptRecord], settings: LocalModelSettings
) -> list[tuple[PromptRecord, str]]:
    """The prompts that the warm start shows, each with the hasty reader's reply.

    They are in the language of the records' world that none of its splits speaks. Raises
    `UnsuitablePromptsError` for other prompts than the synthetic ones.
    """
    if any("world" not in record.metadata for record in records):
        raise UnsuitablePromptsError(
            "local-model.pubmedqa-source",
            "the local model of this task reads its synthetic abstracts alone "
            "(equipoise.data.source: synthetic)",
        )
    [world] = {record.metadata["world"] for record in records}
    abstracts = training_abstracts(settings.steps * settings.batch_size, world, settings.seed)
    rng = np.random.default_rng([settings.seed, 2])
    return [
        (
            prompt_record(abstract.item("shown", world), TRAIN_SPLIT, 3, 960),
            hasty_reply(abstract, rng),
        )
        for abstract in abstracts
    ]
