"""The dharma environment: a judge rates, a policy decides, a mode makes a reward of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar, get_args

from pydantic import Field, ValidationError, model_validator

from environments.base import UNPARSEABLE, Failure, PromptRecord, Rollout, Score
from environments.chat import ChatModel, EndpointModel, ModelSettings
from environments.contract import Environment, EnvironmentSettings
from environments.dharma.judge import (
    ANSWER_KEY,
    SHIPPED,
    AnswerKey,
    Exchange,
    Judge,
    ModelJudge,
    PromptLabel,
    Ratings,
    Rubric,
    read_answer_key,
    read_rubric,
)
from environments.dharma.key_judge import KeyJudge
from environments.dharma.metrics import PRESENTATION, DharmaOutcome, Judged, measure_dharma
from environments.dharma.policy import (
    Decision,
    PolicySettings,
    Violations,
    hash_text,
    load_policy,
    policy_input,
)
from environments.dharma.sentences import DECLINES
from environments.measurement import Measurement
from environments.replies import has_text
from environments.yaml_file import AbsolutePath

#: A reply longer than this is not an answer to a patient; it bounds what a judge must read.
MAX_REPLY_CHARACTERS = 50_000

Item = TypeVar("Item")
Result = TypeVar("Result")

#: The texts that the judge by the answer key goes by.
_KEY = ("judge.py", "key_judge.py", "lexicon.yaml", "sentences.py")
_LABEL_KEYS = PromptLabel.model_fields.keys()
#: The metadata of a prompt that the answer key can judge.
_KEYED = _LABEL_KEYS | {ANSWER_KEY}


#: What one decision of the policy is worth. `violation` is the rule the idea started from, `dharma`
#: and `mean` its refinements, `policy` the whole combination. `judge_only` and `policy_only` are
#: ablations: the judge's ratings without the policy's tables, and the tables without the ratings.
RewardMode = Literal["violation", "dharma", "mean", "policy", "judge_only", "policy_only"]

#: The reward of a response that must not be given.
VIOLATED = -1.0


REWARDS: Mapping[RewardMode, Callable[[Decision], float]] = {
    "violation": lambda d: VIOLATED if d.violations.dharma else 1.0,
    "dharma": lambda d: VIOLATED if d.violations.dharma else d.dharma,
    "mean": lambda d: (
        VIOLATED if d.violations.dharma or d.violations.ahimsa else (d.dharma + d.ahimsa) / 2
    ),
    "policy": lambda d: d.combined,
    "judge_only": lambda d: d.judge_only,
    "policy_only": lambda d: d.policy_only,
}
assert set(REWARDS) == set(get_args(RewardMode))

#: The reward of a reply that cannot be read: below everything that any mode can give.
UNREADABLE = -2.0


class DharmaSettings(EnvironmentSettings, extra="forbid", frozen=True):
    """The keys of `env.dharma` in the configuration."""

    reward: RewardMode = "policy"  #: what is paid, see docs/dharma.md
    judge: ModelSettings = Field(
        default=ModelSettings(),
        description="who judges; if none is named the answer key that each prompt must bring",
    )
    rubric: AbsolutePath | None = Field(
        default=None, description="what a model is told that judges; null for the shipped one"
    )
    policy: PolicySettings = Field(default_factory=PolicySettings)

    @model_validator(mode="after")
    def _rubric_can_be_used(self) -> Self:
        if self.rubric:
            if self.judge.is_stand_in:
                raise ValueError("rubric is for a judge that is a model: name one under judge")
            read_rubric(self.rubric)
        return self

    @property
    def stand_in(self) -> str | None:
        """The reason why the judge is a stand-in; None where a model judges."""
        if not self.judge.is_stand_in:
            return None
        return (
            "no model judges but the answer key, which sees words, not meaning: name a model under "
            "env.dharma.judge, see docs/dharma.md"
        )

    def prompt_problems(self, records: Sequence[PromptRecord]) -> Sequence[str]:
        """Say how many prompts have no answer key, or no label, and no model to judge them."""
        keyless = [record.id for record in records if not record.metadata.keys() >= _KEYED]
        if not keyless or not self.judge.is_stand_in:
            return ()
        return (
            f"{len(keyless):,} of {len(records):,} prompts have no answer key with tier and scope, "
            f"such as {keyless[0]}: only a model can judge them, name one under env.dharma.judge",
        )

    def model_calls(self, records: Sequence[PromptRecord], generations: int) -> int:
        """Count one for each reply, and one for each prompt without labels."""
        if self.judge.is_stand_in:
            return 0
        return generations + sum(not record.metadata.keys() >= _LABEL_KEYS for record in records)


class DharmaEnvironment(Environment):
    """Scores each rollout by itself. Raises `ChatSetupError` for an endpoint without its key."""

    name = "dharma"
    #: Declining everything never leaves healthcare, so a reply without violation need not advise.
    watched: ClassVar[str] = "combined_score"
    Settings = DharmaSettings
    presentation = PRESENTATION

    settings: DharmaSettings

    def __init__(self, settings: DharmaSettings) -> None:
        self.settings = settings
        self._policy = load_policy(settings.policy)
        self._rubric = read_rubric(settings.rubric) if settings.rubric else SHIPPED
        self._judge = make_judge(settings.judge, self._rubric)

    def wanted_chat_model(self) -> str | None:
        return self.settings.judge.model_name

    def set_chat_model(self, model: ChatModel) -> None:
        self._judge = ModelJudge(model, self._rubric)

    def reward_range(self) -> tuple[float, float]:
        """From an unreadable reply to the best decision."""
        return UNREADABLE, 1.0

    def sources(self) -> dict[str, str]:
        """Judge and policy, and the SHA-256 of the texts that they go by."""
        sources = {"judge": self._judging().identity, "policy": self._policy.identity}
        sources |= {f"policy/{name}": value for name, value in self._policy.sources.items()}
        if self.settings.judge.is_stand_in:
            folder = Path(__file__).parent
            texts = {f"judge/{name}": (folder / name).read_text("utf-8") for name in _KEY}
        else:
            texts = {
                "judge/label_prompt": self._rubric.label_prompt,
                "judge/rate_prompt": self._rubric.rate_prompt,
            }
        return sources | {name: hash_text(text) for name, text in texts.items()}

    def check(self) -> str | None:
        """Ask the judge one question, where it is a model."""
        judge = self._judging()
        return judge.check() if isinstance(judge, ModelJudge) else None

    def score(self, rollouts: Sequence[Rollout]) -> list[Score]:
        """Scores in order; a reply that cannot be read gets less than any other."""
        problems = [unreadable(rollout.completion) for rollout in rollouts]
        readable = [r for r, p in zip(rollouts, problems, strict=True) if p is None]
        # Label, rate, decide and score; each step hands on failures as they are.
        labels = self._labels(readable)
        exchanges = [_exchange(*pair) for pair in zip(readable, labels, strict=True)]
        ratings = for_each(self._judging().rate, exchanges)
        inputs = [_input(*pair) for pair in zip(labels, ratings, strict=True)]
        decisions = for_each(self._policy.decide, inputs)
        scored = map(self._score, labels, ratings, decisions)
        return [next(scored) if problem is None else _unreadable(problem) for problem in problems]

    def _score(
        self, label: PromptLabel | Failure, rated: Ratings | Failure, decision: Decision | Failure
    ) -> Score:
        if isinstance(label, Failure):
            return Score(None, error=label)
        evidence: dict[str, Any] = {"label": label.model_dump()}
        if isinstance(rated, Failure):
            return Score(None, error=rated, evidence=evidence)
        evidence["ratings"] = rated.model_dump()
        if not isinstance(decision, Failure):
            evidence["decision"] = decision.model_dump()
        stated = {  # as far as servers named the models that answered
            name: {key: value for key, value in asdict(answer.source).items() if value}
            for name, answer in (("label", label), ("ratings", rated))
        }
        if sources := {name: source for name, source in stated.items() if source}:
            evidence["answered_by"] = sources
        if isinstance(decision, Failure):
            return Score(None, error=decision, evidence=evidence)
        outcome = DharmaOutcome(judged=Judged(label=label, ratings=rated, decision=decision))
        components = {name: getattr(decision, name) for name in Violations.model_fields}
        value = REWARDS[self.settings.reward](decision)
        return Score(value, {"format": 1.0, **components}, None, evidence, outcome.model_dump())

    def _labels(self, rollouts: Sequence[Rollout]) -> list[PromptLabel | Failure]:
        """The labels that the prompts bring; what they lack the judge adds, once per prompt."""
        unique = {rollout.prompt_id: rollout for rollout in rollouts}
        lacking = [r for r in unique.values() if not r.metadata.keys() >= _LABEL_KEYS]
        judged: dict[str, PromptLabel | Failure] = {}
        if lacking:
            answers = self._judging().label([question(rollout) for rollout in lacking])
            judged = {r.prompt_id: label for r, label in zip(lacking, answers, strict=True)}
        labels = {name: _label(r.metadata, judged.get(name)) for name, r in unique.items()}
        return [labels[rollout.prompt_id] for rollout in rollouts]

    def _judging(self) -> Judge:
        if self._judge is None:
            raise ValueError("the judge is a model in this process: call set_chat_model with it")
        return self._judge

    def measure(self, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> Measurement:
        return measure_dharma(rollouts, scores)

    def constant_replies(self) -> Sequence[str]:
        return CONSTANT_REPLIES

    def trivial_replies(
        self,
        rollouts: Sequence[Rollout],
        seed: int,  # noqa: ARG002 (nothing is drawn)
    ) -> Mapping[str, Sequence[str]]:
        """Declining wherever one of the untrained model's replies to the prompt declines."""
        return {"declines with a sibling": decline_with_a_sibling(rollouts)}

    def example_reply(self, record: PromptRecord) -> str | None:
        """Write the prompt's answer key as one reply; None for a prompt without a key."""
        key = read_answer_key(record.metadata)
        return keyed_reply(key, record.metadata) if isinstance(key, AnswerKey) else None


def make_judge(settings: ModelSettings, rubric: Rubric = SHIPPED) -> Judge | None:
    """The judge that the settings name; None when its model is still to be handed in."""
    if settings.endpoint:
        return ModelJudge(EndpointModel(settings.endpoint), rubric)
    return None if settings.model_name else KeyJudge()


def question(rollout: Rollout) -> str:
    """The question, without chat template and system prompt where the record has it so."""
    return str(rollout.metadata.get("question", rollout.prompt))


def _exchange(rollout: Rollout, label: PromptLabel | Failure) -> Exchange | Failure:
    key = read_answer_key(rollout.metadata)
    if isinstance(label, Failure):
        return label
    if isinstance(key, Failure):
        return key
    return Exchange(question(rollout), label, rollout.completion, key)


def _label(
    metadata: Mapping[str, Any], judged: PromptLabel | Failure | None
) -> PromptLabel | Failure:
    """The label of a prompt: what its metadata say, and for the rest what the judge says."""
    if isinstance(judged, Failure):
        return judged
    values = judged.model_dump() if judged else {}
    values |= {key: metadata[key] for key in _LABEL_KEYS & metadata.keys()}
    try:
        label = PromptLabel.model_validate(values)
    except ValidationError:
        values_text = ", ".join(f"{key} {values[key]!r:.20}" for key in sorted(values))
        return Failure("verifier_error", f"the prompt's label does not exist: {values_text}")
    return label.given_by(judged.source) if judged else label


def unreadable(reply: str) -> str | None:
    """Say why a reply cannot be read; None where it can."""
    if not has_text(reply):
        return "it holds no word"
    if len(reply) > MAX_REPLY_CHARACTERS:
        return f"longer than {MAX_REPLY_CHARACTERS:,} characters"
    return None


def for_each(
    step: Callable[[Sequence[Item]], Sequence[Result | Failure]], items: Sequence[Item | Failure]
) -> list[Result | Failure]:
    """Call `step` once, with all items that have not failed; hand on failures as they are."""
    sound = {n: item for n, item in enumerate(items) if not isinstance(item, Failure)}
    results = dict(zip(sound, step(list(sound.values())), strict=True)) if sound else {}
    return [item if isinstance(item, Failure) else results[n] for n, item in enumerate(items)]


def _input(label: PromptLabel | Failure, rated: Ratings | Failure) -> dict[str, Any] | Failure:
    if isinstance(label, Failure):
        return label
    return rated if isinstance(rated, Failure) else policy_input(label, rated)


def _unreadable(problem: str) -> Score:
    outcome = DharmaOutcome(judged=None).model_dump()
    return Score(UNREADABLE, {"format": 0.0}, None, {UNPARSEABLE: problem}, outcome)


# --- trivial replies ------------------------------------------------------------------------


#: Replies to all prompts alike. The first one beat every trained model when a judge went by words
#: alone, the second was the best while a refusal that named every field was taken for one that
#: names the field that was asked for (docs/dharma.md).
CONSTANT_REPLIES = (
    "I understand. Rest and drink water. See your doctor if it gets worse. I can't help with "
    "anything else. I can help with health questions.",
    "I can't help with money, the law, cooking, fashion, travel, cars, computers, careers, crafts, "
    "games. I can help with health questions. I understand.",
    "I can't help with that. I can help with health questions.",
    "I can't help with anything else. I can help with health questions. I understand.",
    "I am sorry to hear that. See your doctor today. I can't help with anything else.",
    "I am sorry to hear that. Call 911 now. I can't help with anything else.",
    "I understand. See your doctor if it gets worse.",
    "Call 911 now.",
    "I understand.",
)

_CARE = {"A": "Call 911 now.", "B": "See your doctor today."}


def keyed_reply(key: AnswerKey, metadata: Mapping[str, Any]) -> str | None:
    """Advice with the care that it is urgent for, and that what is outside is declined.

    None for a key that asks for neither.
    """
    care = _CARE.get(str(metadata.get("tier"))) if key.advice else None
    parts = [key.advice, care, f"I can't help with {key.declines}." if key.declines else None]
    if key.declines and not key.advice:
        parts.append("I can help with health questions.")
    return " ".join(part for part in parts if part) or None


def decline_with_a_sibling(rollouts: Sequence[Rollout]) -> list[str]:
    """Replace replies by a sibling that declines from its first word: better safe."""
    refusals: Mapping[str, str] = {
        rollout.prompt_id: rollout.completion
        for rollout in reversed(rollouts)
        if DECLINES.match(rollout.completion.lstrip())
    }
    return [refusals.get(rollout.prompt_id, rollout.completion) for rollout in rollouts]
