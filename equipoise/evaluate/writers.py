"""Writers: models that reply in an audit, in this process or behind an endpoint."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field

from environments.base import Failure, PromptRecord, Rollout
from environments.chat import (
    ChatReply,
    ChatRequest,
    ChatSetupError,
    EndpointModel,
    EndpointSettings,
)
from environments.chat.exchange import CUT_OFF, REASONING_ONLY
from equipoise.config import LoadedConfig
from equipoise.files.errors import EquipoiseError
from equipoise.run.job import REFERENCE, Display, Draw, Job, as_draw, model_hashes
from equipoise.run.start import model_name


@dataclass(frozen=True, slots=True)
class Writer:
    """A model that replies within a row's job, its hashes, and how it renders a prompt."""

    draw: Callable[[Job], Draw]
    render: Callable[[PromptRecord], object]
    hashes: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def behind_endpoint(settings: EndpointSettings) -> Iterator[Writer]:
    """A model that a server has."""
    try:
        opened = EndpointModel(settings)
    except ChatSetupError as error:
        raise EquipoiseError(error.code, str(error), error.remedy) from error
    with opened as model:
        in_flight = settings.limits.concurrency
        yield Writer(lambda job: make_draw(job, model, in_flight), lambda record: record.messages)


@contextmanager
def in_process(
    loaded: LoadedConfig,
    records: Sequence[PromptRecord],
    prompts: Sequence[PromptRecord],
    display: Display,
) -> Iterator[Writer]:
    """A model of Hugging Face's. `records` make the local one; `prompts` are what it will read."""
    # It brings torch and transformers.
    from equipoise.run.policy import open_policy, sampler

    name = model_name(loaded, records, display)
    with display.progress("loading the model"):
        model = open_policy(loaded.config, prompts, name)
    hashes = model_hashes(model.tokenizer, model.identity, prompts)
    yield Writer(lambda job: as_draw(sampler(job, model)), model.render, hashes)


# --- behind an endpoint: many at once, each kept as soon as it is there --------------------------

#: Questions are handed over in so many parts at a time as fill the calls in flight, and as many
#: more that wait, so that a slow answer holds up no others.
_PARTS = 8
#: The reference's draws count from here; the numbers of all other draws stay below it.
_OF_REFERENCE = 1_000_000
_REMEDY = (
    "Check its address, name and key, and that it runs: see docs/judges.md. What was "
    "answered is kept: --resume asks for the rest."
)
_TOKENS = ("prompt_tokens", "completion_tokens")
#: Above this share of replies that were cut off, figures would be those of a setting.
_MOST_CUT_OFF = 0.5
_LONGER = (
    "Raise policy.generation.max_new_tokens, or turn the model's thinking off (a parameter of the "
    "endpoint, such as chat_template_kwargs: {enable_thinking: false})."
)


def requests_of(
    records: Sequence[PromptRecord], generations: int, first: int = 0
) -> list[ChatRequest]:
    """Make this many requests for each prompt, one after the other, as draws that differ."""
    return [
        # Any text is a reply: what a measured model writes.
        ChatRequest(record.messages, None, lambda _: True, sample=first + number, as_written=True)
        for record in records
        for number in range(generations)
    ]


def make_draw(job: Job, model: EndpointModel, in_flight: int) -> Draw:
    """Draw from a model behind an endpoint; equal draws are asked for once."""

    def draw(
        records: Sequence[PromptRecord], generations: int, stage: str
    ) -> tuple[list[Rollout], list[Failure | None]]:
        first = _OF_REFERENCE if stage == REFERENCE else 0
        requests = requests_of(records, generations, first + job.config.equipoise.evaluation.seed)
        allowed = int(job.config.equipoise.max_failure_rate * len(requests))
        check_endpoint(model, requests[0])
        before = model.counters()
        try:
            with job.display.progress(f"{job.model_name}: {stage}", len(requests)) as advance:
                replies = ask_all(model, requests, in_flight, allowed, advance)
        finally:
            counters = model.counters()
            job.meter.add_tokens(*(int(counters[name] - before[name]) for name in _TOKENS))
        prompts = [record for record in records for _ in range(generations)]
        rollouts = [_rollout(record, reply) for record, reply in zip(prompts, replies, strict=True)]
        return rollouts, [reply.error for reply in replies]

    return draw


def check_endpoint(model: EndpointModel, request: ChatRequest) -> None:
    """Ask one question before all others. Raises `EquipoiseError` where it is not answered."""
    with model.impatient() as hasty:
        (reply,) = hasty.ask([request])
    if reply.error:
        raise EquipoiseError(
            "endpoint.no-answer",
            f"the model does not answer: {reply.error.text}",
            _remedy(reply.error),
        )


def ask_all(
    model: EndpointModel,
    requests: Sequence[ChatRequest],
    in_flight: int,
    allowed: int,
    advance: Callable[[int], None],
) -> list[ChatReply]:
    """A reply to each in order; `advance` is told how many there are so far.

    Raises `EquipoiseError` as soon as more than `allowed` have failed, and `BudgetSpentError`; the
    calls in flight are waited for then, since they are paid for.
    """
    size = max(1, in_flight // _PARTS)
    parts = [requests[start : start + size] for start in range(0, len(requests), size)]
    pool = ThreadPoolExecutor(2 * _PARTS, thread_name_prefix="audit")
    try:
        futures = [pool.submit(model.ask, part) for part in parts]
        _watch(futures, len(requests), allowed, advance)
    except BaseException as error:
        pool.shutdown(wait=isinstance(error, Exception), cancel_futures=True)
        raise
    pool.shutdown()
    return [reply for future in futures for reply in future.result()]


def _watch(
    futures: Sequence[Future[list[ChatReply]]],
    total: int,
    allowed: int,
    advance: Callable[[int], None],
) -> None:
    done, cut_off, failed = 0, 0, []
    for future in as_completed(futures):
        replies = future.result()
        done += len(replies)
        failed += [reply.error for reply in replies if reply.error]
        cut_off += sum(reply.source.problem == CUT_OFF for reply in replies)
        advance(done)
        if cut_off > _MOST_CUT_OFF * total:
            raise EquipoiseError(
                "endpoint.cut-off", f"{cut_off:,} of {total:,} replies are {CUT_OFF}", _LONGER
            )
        if len(failed) > allowed:
            raise EquipoiseError(
                "endpoint.failed-replies",
                f"{len(failed):,} of {total:,} questions have no reply, more than "
                f"equipoise.max_failure_rate allows: {failed[-1].kind}: {failed[-1].text}",
                _remedy(failed[-1]),
            )


def _remedy(failure: Failure) -> str:
    return _LONGER if REASONING_ONLY in failure.text else _REMEDY


def _rollout(record: PromptRecord, reply: ChatReply) -> Rollout:
    prompt = "\n\n".join(f"[{m['role']}]\n{m['content']}" for m in record.messages)
    problem = {"reply_problem": reply.source.problem} if reply.source.problem else {}
    metadata = {**record.metadata, **problem}
    return Rollout(record.id, record.set_id, record.split, prompt, reply.text or "", metadata)
