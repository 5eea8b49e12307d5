"""How a model writes in an audit, be it in this process or behind an endpoint."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from environments.base import PromptRecord
from environments.chat import ChatSetupError, EndpointModel
from equipoise.config import LoadedConfig
from equipoise.errors import EquipoiseError
from equipoise.evaluate.endpoint import Asker, as_sample, make_draw
from equipoise.evaluate.subjects import Subject, endpoint_settings
from equipoise.evaluate.variants import Variant, schema_of
from equipoise.terminal.console import Reporter
from equipoise.train.pipeline import model_name
from equipoise.train.stages.around_training import Draw, Sample, never_failing
from equipoise.train.stages.job import Job


@dataclass(frozen=True, slots=True)
class Writer:
    """How a model writes: within a row's job; what it is, and what its tokenizer shows it.

    `identity` says what decides its reference, see `take_reference`. Where `stop` is, it ends what
    the model was asked for in another thread; without it the model writes in the caller's.
    """

    draw: Callable[[Job, Variant], Draw]
    reference: Callable[[Job, Variant], Sample]
    render: Callable[[PromptRecord], object]
    hashed: str | None = None
    identity: str | None = None
    stop: Callable[[], None] | None = None


@contextmanager
def behind_endpoint(loaded: LoadedConfig, subject: Subject, root: Path) -> Iterator[Writer]:
    """A model that a server has; its answers are kept below `root`."""
    generation = loaded.config.policy.generation
    settings = endpoint_settings(subject, generation, root / "answers")
    try:
        opened = EndpointModel(settings, listed=False)
    except ChatSetupError as error:
        raise EquipoiseError(str(error), error.remedy) from error
    with opened as model:
        asker = Asker(model, settings.limits.concurrency)

        def draw(job: Job, variant: Variant) -> Draw:
            return make_draw(job, asker, schema_of(variant, job.environment))

        yield Writer(
            draw,
            lambda job, variant: as_sample(draw(job, variant)),
            lambda record: record.messages,
            stop=asker.stop,
        )


@contextmanager
def in_process(
    loaded: LoadedConfig,
    records: Sequence[PromptRecord],
    prompts: Sequence[PromptRecord],
    reporter: Reporter,
    *,
    unsealed: bool,
) -> Iterator[Writer]:
    """A model of Hugging Face's. `records` make the local one; `prompts` are what it will read.

    `unsealed` accepts a run's model without a seal.
    """
    # It brings torch and transformers.
    from equipoise.train.local.engine import open_policy, reference_identity, sampler
    from equipoise.train.local.generation import render_prompt

    name = model_name(loaded, records, reporter, unsealed=unsealed)
    with reporter.progress("loading the model"):
        model = open_policy(loaded.config, prompts, name)
    yield Writer(
        lambda job, _: never_failing(sampler(job, model)),
        lambda job, _: sampler(job, model),
        partial(render_prompt, model.tokenizer),
        model.identity,
        reference_identity(loaded.config, model),
    )
