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

PLAIN = {"usage": USAGE}
FILTERED = "not whole: finish_reason content_filter"
OF_VLLM = {"content": None, "reasoning_content": "Pain fell"}
#: Server and case -> message, reason, what else is in the body; text, why it is not whole.
ANSWERS = {
    "vLLM": (VLLM_MESSAGE | {"content": "yes"}, "stop", VLLM, "yes", None),
    "vLLM, all of it reasoning": (VLLM_MESSAGE | OF_VLLM, "length", VLLM, "", REASONING_ONLY),
    "vLLM, cut off": (VLLM_MESSAGE | {"content": "y"}, "length", VLLM, "y", CUT_OFF),
    "llama.cpp": ({"content": "yes"}, "stop", LLAMA_CPP, "yes", None),
    "Ollama": ({"content": "yes", "reasoning": "Pain fell."}, "stop", OLLAMA, "yes", None),
    "Gemini, cut off within its thoughts": ({}, "length", PLAIN, "", REASONING_ONLY),
    "Gemini, filtered": ({}, "content_filter: SAFETY", PLAIN, "", f"{FILTERED}: safety"),
    "Mistral, in parts": (
        *({"content": [*THOUGHT, {"type": "text", "text": "yes"}]}, "stop", PLAIN, "yes", None),
    ),
    "Mistral, all of it reasoning": ({"content": THOUGHT}, "length", PLAIN, "", REASONING_ONLY),
    "Mistral, cut off": ({"content": "y"}, "model_length", PLAIN, "y", CUT_OFF),
    "LiteLLM, of Anthropic": (
        *(LITELLM_MESSAGE | {"content": "y"}, "max_tokens", LITELLM, "y", CUT_OFF),
    ),
    "in capitals": ({"content": "y"}, "LENGTH", PLAIN, "y", CUT_OFF),
    "without a reason": ({"content": "yes"}, None, PLAIN, "yes", None),
    "a filter in capitals": ({"content": "y"}, "Content_Filter", PLAIN, "y", FILTERED),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_an_answer_is_read_with_why_it_is_not_whole(case):
    message, reason, more, text, problem = ANSWERS[case]
    found = read_answer(json.dumps(answer(message, reason, **more)).encode(), 0)
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
