"""Servers that speak OpenAI's form each in their own way: what is read of the answers of each."""

import json

import pytest

from environments.chat import ChatRequest
from environments.chat.exchange import CUT_OFF, REASONING_ONLY, Answer, FailedAttempt, read_answer

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
THOUGHT = [{"type": "thinking", "thinking": [{"type": "text", "text": "Pain fell."}]}]


def answer(message, finish_reason="stop", choice=None, **more):
    """A body with what is the same everywhere."""
    choices = [{"index": 0, "message": {"role": "assistant"} | message} | (choice or {})]
    choices[0]["finish_reason"] = finish_reason
    return {"id": "1", "object": "chat.completion", "created": 1, "choices": choices} | more


VLLM = {
    "choice": {"logprobs": None, "stop_reason": None, "token_ids": None},
    "usage": USAGE | {"prompt_tokens_details": None},
    "prompt_logprobs": None,
    "kv_transfer_params": None,
}
VLLM_MESSAGE = {"refusal": None, "annotations": None, "audio": None, "tool_calls": []}
LLAMA_CPP = {"usage": USAGE, "timings": {"prompt_n": 7}, "system_fingerprint": "b6123-a1b2"}
OLLAMA = {"usage": USAGE, "system_fingerprint": "fp_ollama"}
LITELLM = {"usage": USAGE | {"prompt_tokens_details": None}, "service_tier": None}
LITELLM_MESSAGE = {"tool_calls": None, "function_call": None, "provider_specific_fields": {}}

#: Server and case -> body, text, why it is not whole.
ANSWERS = {
    "vLLM": (answer(VLLM_MESSAGE | {"content": "yes"}, **VLLM), "yes", None),
    "vLLM, all of it reasoning": (
        answer(
            VLLM_MESSAGE | {"content": None, "reasoning_content": "Pain fell"}, "length", **VLLM
        ),
        "",
        REASONING_ONLY,
    ),
    "vLLM, cut off": (answer(VLLM_MESSAGE | {"content": "y"}, "length", **VLLM), "y", CUT_OFF),
    "llama.cpp": (answer({"content": "yes"}, **LLAMA_CPP), "yes", None),
    "Ollama": (answer({"content": "yes", "reasoning": "Pain fell."}, **OLLAMA), "yes", None),
    "Gemini, cut off within its thoughts": (answer({}, "length", usage=USAGE), "", REASONING_ONLY),
    "Gemini, filtered": (
        answer({}, "content_filter: SAFETY", usage=USAGE),
        "",
        "not whole: finish_reason content_filter: safety",
    ),
    "Mistral, in parts": (
        answer({"content": [*THOUGHT, {"type": "text", "text": "yes"}]}, usage=USAGE),
        "yes",
        None,
    ),
    "Mistral, all of it reasoning": (
        answer({"content": THOUGHT}, "length", usage=USAGE),
        "",
        REASONING_ONLY,
    ),
    "Mistral, cut off": (answer({"content": "y"}, "model_length", usage=USAGE), "y", CUT_OFF),
    "LiteLLM, of Anthropic": (
        answer(LITELLM_MESSAGE | {"content": "y"}, "max_tokens", **LITELLM),
        "y",
        CUT_OFF,
    ),
    "in capitals": (answer({"content": "y"}, "LENGTH", usage=USAGE), "y", CUT_OFF),
    "without a reason": (answer({"content": "yes"}, None, usage=USAGE), "yes", None),
    "a filter in capitals": (
        answer({"content": "y"}, "Content_Filter", usage=USAGE),
        "y",
        "not whole: finish_reason content_filter",
    ),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_an_answer_is_read_with_why_it_is_not_whole(case):
    body, text, problem = ANSWERS[case]
    found = read_answer(json.dumps(body).encode(), 0)
    assert isinstance(found, Answer)
    assert (found.text, found.source.problem) == (text, problem)
    assert (found.usage.prompt_tokens, found.usage.reported) == (7, True)


MARKED = {
    "finish_reason": answer({"content": "yes"}, "error"),
    "in capitals": answer({"content": "yes"}, "ERROR"),
    "broken off": answer({"content": "yes"}, "abort"),
    "beside the text": answer({"content": "yes"}, choice={"error": {"code": 502}}),
    "beside the choices": answer({"content": "yes"}, error={"message": "overloaded"}),
}


@pytest.mark.parametrize("body", MARKED.values(), ids=MARKED.keys())
def test_an_answer_that_is_marked_as_an_error_is_none_however_it_reads(body):
    found = read_answer(json.dumps(body).encode(), 0)
    assert isinstance(found, FailedAttempt)
    assert (found.kind, found.transient) == ("server_error", True)
    assert isinstance(
        read_answer(json.dumps(answer({"content": "y"}, error=None)).encode(), 0), Answer
    )


def test_a_cached_answer_of_a_measured_model_keeps_why_it_is_not_whole(make, server):
    server.says(server.completion("y", "length"))
    measured = ChatRequest(({"role": "user", "content": "a"},), as_written=True)
    for cached in (False, True):
        (reply,) = make().ask([measured])
        assert (reply.text, reply.cached, reply.source.problem) == ("y", cached, CUT_OFF)
