"""Secrets: what a generated URI, option or variable hides is in no text that is kept or shown; other text stays."""

import re
import shlex
import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retable.platform.errors import (
    HIDDEN,
    UserError,
    one_line,
    passing_errors,
    portable,
    redact,
    redact_command,
    traceback_of,
)


def test_a_traceback_is_bounded_and_keeps_its_beginning_and_its_end():
    def deep(depth):
        if depth:
            raise ValueError(f"{depth} " + "x" * 10_000) from deep_error(depth - 1)
        raise KeyError("first")

    def deep_error(depth):
        try:
            deep(depth)
        except Exception as error:
            return error

    text = traceback_of(deep_error(100))
    lines = text.splitlines()
    assert len(lines) == 201 and re.fullmatch(r"\.\.\. \d+ lines left out \.\.\.", lines[100])
    assert "KeyError: 'first'" in text and lines[-1].startswith("ValueError: 100 xxx") and len(text) < 101_000
    start = time.monotonic()
    traceback_of(ValueError("://" * 1_000_000))  # what a regular expression takes a square of time for
    assert time.monotonic() - start < 20


SECRETS = st.text(string.ascii_letters + string.digits + "/+=~!$%.,:@-_", min_size=8, max_size=40).map(
    lambda s: f"Zq{s}qZ"
)
"""Marked at both ends, as no other word of the tests is."""
QUOTED = SECRETS.map(lambda secret: secret.replace("/", "%2F").replace("@", "%40").replace(":", "%3A"))
NAMES = (
    "api-key",
    "api_key",
    "token",
    "hf-token",
    "password",
    "passwd",
    "secret",
    "secret-key",
    "access_key",
    "account-key",
)
VARIABLES = (
    "AWS_SECRET_ACCESS_KEY",
    "AWS_ACCESS_KEY_ID",
    "AWS_SESSION_TOKEN",
    "HF_TOKEN",
    "OPENAI_API_KEY",
    "AWS_SECRET",
)
PARAMETERS = ("secret_key", "token", "sig", "key", "X-Amz-Signature", "X-Amz-Security-Token", "AWSAccessKeyId", "sas")
AROUND = st.sampled_from(
    [("", ""), ("--storage ", ": no such bucket"), ("Cannot parse URI: '", "' due to"), ("(", ")"), ('{"a": "', '"}')]
)


def clean(text, secret):
    """Say whether nothing of a secret is left, half of it neither, and redacting again changes nothing."""
    halves = secret[: len(secret) // 2], secret[len(secret) // 2 :]
    return not any(part in redact(text) for part in (secret, *halves)) and redact(redact(text)) == redact(text)


@given(
    st.sampled_from(["s3", "gs", "ftp", "https", "abfs", "S3"]), st.sampled_from(["", "u", "AKIA7"]), SECRETS, AROUND
)
def test_a_password_in_a_uri_is_hidden_however_it_is_written(scheme, user, secret, around):
    text = f"{around[0]}{scheme}://{user}:{secret}@bucket/a/path{around[1]}"
    assert clean(text, secret)
    assert redact(text) == f"{around[0]}{scheme}://{HIDDEN}@bucket/a/path{around[1]}"


@given(QUOTED)
def test_a_token_in_front_of_a_host_is_hidden(secret):
    token = secret.replace("%", "x")
    assert redact(f"https://{token}@host/x") == f"https://{HIDDEN}@host/x"


@given(st.sampled_from(PARAMETERS), SECRETS.filter(lambda secret: "@" not in secret), st.sampled_from("?&"))
def test_a_secret_parameter_is_hidden_and_the_others_stay(name, secret, mark):
    text = f"s3://bucket/x?region=eu{'&' if mark == '&' else '?'}{name}={secret}&scheme=http"
    assert clean(text, secret) and redact(text).endswith(f"{name}={HIDDEN}&scheme=http")
    assert "region=eu" in redact(text)


@given(st.sampled_from(NAMES), SECRETS, st.sampled_from([" ", "="]), st.booleans())
def test_the_value_of_a_secret_option_is_hidden(name, secret, between, loud):
    text = f"retable train rl --{name.upper() if loud else name}{between}{secret} --seed 3"
    assert clean(text, secret) and redact(text).endswith(f"{between}{HIDDEN} --seed 3")


@given(st.sampled_from(VARIABLES), SECRETS)
def test_the_value_of_a_secret_variable_is_hidden(name, secret):
    assert redact(f"{name}={secret} retable plan") == f"{name}={HIDDEN} retable plan"
    assert clean(f"options {{'{name}': '{secret}', 'anon': False}}", secret)


@given(st.sampled_from(NAMES), SECRETS, SECRETS)
def test_a_secret_with_spaces_is_hidden_in_a_command(name, first, second):
    for words in ([f"--{name}", f"{first} {second}"], [f"--{name}={first} {second}"]):
        said = redact_command(["retable", *words, "plan"])
        assert first not in said and second not in said and said.startswith("retable --") and said.endswith(" plan")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "retable reproduce rl/table1 --set prune=snip --set prune.sparsity=0.9 --storage s3://bucket/a/b?region=eu",
        "s3://bucket/runs@2/x: the disk is full; free some space",
        "s3://bucket/x?endpoint_override=127.0.0.1:9000&scheme=http&region=us-east-1",
        "see http://127.0.0.1:8265/ or mail a@b.org",
        "abfs://container@account.dfs.core.windows.net/x: no permission",
        "--set text.tokens=32 --set tokenizer=bpe --set author=me",
        "Ray's token /home/me/.ray/auth_token is readable by others; chmod 600 it",
        "OPENAI_API_KEY: not set; set it",
        "file.h5: key 'rates.crop' is missing; download the file again",
        "unknown field 'token'; did you mean 'tokens'?",
        "/tmp/a:b@c/x = 3",
    ],
)
def test_harmless_text_stays_as_it_is(text):
    assert redact(text) == text and redact_command(text.split(" ")) == text


@given(st.text(string.ascii_letters + string.digits + " .,;/_-='\"()[]{}%+\n", max_size=80))
def test_text_without_secrets_names_and_uris_stays_as_it_is(text):
    if not any(word in text.lower() for word in ("secret", "token", "pass", "credential", "signature", "key")):
        assert redact(text) == text


@pytest.mark.parametrize("place", ["/home/me/x", "/home/al ice/x", "/home/bob/Bob's runs", "s3://bucket/x?region=eu"])
@pytest.mark.parametrize("form", ["--storage={}", "--storage {}"])
def test_a_kept_command_is_portable(place, form):
    words = form.format(place).split(" ", 1) if form == "--storage {}" else [form.format(place)]
    command = redact_command(["retable", "plan", *words, "rl/table1", "--rows", "SNIP 95 %"])
    assert shlex.split(command)[2:-3] == words
    assert portable(command) == "retable plan rl/table1 --rows 'SNIP 95 %'"


def test_every_error_is_without_secrets():
    uri = "s3://AKIA:ab/cd+ef@bucket"
    assert (
        str(UserError(f"--storage {uri}: {uri} is no bucket"))
        == "--storage s3://***@bucket: s3://***@bucket is no bucket"
    )
    assert one_line(OSError(f"cannot reach {uri}")) == "OSError: cannot reach s3://***@bucket"


@pytest.mark.parametrize("path", ["/mnt/temporary/x.json", "/mnt/connection/x.json", "/mnt/expired/x.json"])
def test_an_absent_file_is_absent_whatever_words_its_path_holds(path):
    with pytest.raises(FileNotFoundError), passing_errors("x"):
        raise FileNotFoundError(path)
