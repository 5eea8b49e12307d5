"""Keys in a diff are masked, and nothing else of it."""

import time

import pytest

from equipoise.config.secrets import MASK, masked_diff

KEY = "sk-" + "a1B2" * 8
HEADER = "diff --git a/{0} b/{0}\n--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n"


@pytest.mark.parametrize(
    ("file", "line", "kept"),
    [
        ("x.yaml", "+  api_key: hunter2", f"+  api_key: {MASK}"),
        ("x.yaml", "-  password: 'two words'  # mine", f"-  password: {MASK}  # mine"),
        (
            "x.yaml",
            "   {user: me, hf_token: abc, n: 1}",
            f"   {{user: me, hf_token: {MASK}, n: 1}}",
        ),
        ("x.env", "+WANDB_API_KEY=0123456789abcdef", f"+WANDB_API_KEY={MASK}"),
        ("x.json", '+  "apiKey": "hunter2",', f'+  "apiKey": {MASK},'),
        ("x.py", f'+    ask("{KEY}")', f'+    ask("{MASK}")'),
        ("x.py", '+    api_key = "correct horse"', f"+    api_key = {MASK}"),
        ("x.md", "+see http://me:hunter2@host/v1", f"+see http://{MASK}@host/v1"),
        ("x.py", "+    -----BEGIN RSA PRIVATE KEY-----", f"+    {MASK}"),
    ],
)
def test_a_secret_is_masked(file: str, line: str, kept: str) -> None:
    assert masked_diff(f"{HEADER.format(file)}{line}\n") == (f"{HEADER.format(file)}{kept}\n", 1)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("x.yaml", "+  api_key_env: OPENAI_API_KEY"),
        ("x.yaml", "+  api_key: null"),
        ("x.yaml", "+  api_key: ${oc.env:OPENAI_API_KEY}"),
        ("x.yaml", "+  max_new_tokens: 48"),
        ("x.yaml", "+  eos_token: <eos>"),
        ("x.sh", "+export HF_TOKEN=$OTHER"),
        ("x.py", "+    api_key = read_key(settings.api_key_env)"),
        ("x.py", "+    token: Annotated[str, Field(min_length=1)]"),
        ("x.py", "+index 0123456789abcdef0123456789abcdef01234567..89"),
        ("x.md", "+see http://localhost:8000/v1 and git@host:a/b"),
    ],
)
def test_anything_else_stays_as_it_is(file: str, line: str) -> None:
    diff = f"{HEADER.format(file)}{line}\n"
    assert masked_diff(diff) == (diff, 0)


@pytest.mark.parametrize(
    "unit",
    [
        *("a", "-", "_", " ", '"', "'", ":", "=", "api_key", "api_key ", "eyJ-", "eyJa.", "sk-"),
        *("://", "://a:", "http://", "?key=", "bearer ", "-----BEGIN ", "AKIA", "hf_", "token='"),
    ],
)
def test_the_time_grows_with_the_length_alone(unit: str) -> None:
    def seconds(length: int) -> float:
        line = HEADER.format("x.yaml") + (unit * length)[:length] + "\n"
        started = time.process_time()
        masked_diff(line)
        return time.process_time() - started

    assert seconds(200_000) < max(0.5, 8 * seconds(50_000))
