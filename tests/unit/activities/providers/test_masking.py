"""A provider's sentence is shown without what may be content or a secret."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.activities.providers.masking import MASK, MAX_SENTENCE_CHARACTERS, RequestTexts, mask

NAMES = ("look_up", "a", "claude-3-5-sonnet-20241022", "org/model4everyone20250101")
KEPT = [
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
    "This model's maximum context length is 8192 tokens, and your message's is 9000.",
    "Invalid schema for function 'look_up': In context=('properties', 'a'), 'oneOf' is not permitted.",
    "tools.0.custom.input_schema: JSON schema is invalid. It must match JSON Schema draft 2020-12",
    "The model `claude-3-5-sonnet-20241022` does not exist; see https://docs.example.com/models.",
    "The model `org/model4everyone20250101` does not exist.",
    'Expected a value <= 2, but got "200" instead.',
]
MASKED = [
    ("Invalid value: 'Mueller-Luedenscheidt'.", "Invalid value: '…'."),
    ("Unknown name 'Diagnosis:HIV' or 'diabetes'", "Unknown name '…'"),
    ("the tool 'pay_out' is unknown", "the tool '…' is unknown"),
    ("Invalid value: 'I have a rash'.", "Invalid value: '…'."),
    ("Invalid value: 'he said 'no' to me'. Use 'low'.", "Invalid value: '…'."),
    ("Invalid value: 'cut in the midd", "Invalid value: '…"),
    ("Bad “text of a person”, «and more», `rm -rf /`", "Bad “…”, «…», `…`"),
    ("'messages' must contain the word 'json don't you see'", "'messages' must contain the word '…'"),
    ("Field required: {'role': 'user', 'content': 'hello'}", "Field required: {…}"),
    ('Bad body {"content": "hel', "Bad body {…}"),
    ("Input should be text, input: Dear doctor", "Input should be text, input: …"),
    ("Incorrect API key provided: sk-proj-abc123.", "Incorrect API key provided: …"),
    ("Incorrect API key provided: plainword.", "Incorrect API key provided: …"),
    ("Incorrect key ab***yz", "Incorrect key …"),
    ("Bearer abcdef is no token", "Bearer … is no token"),
    ("the account ann@example.com is closed", "the account … is closed"),
    ("cannot load https://u:p@h.example/x.png or https://h.example/x?sig=1", "cannot load … or …"),
    ("in organization org-AbCd1234EfGh5678IjKl on tokens", "in organization … on tokens"),
    ("request 0192b000-0000-7000-8000-0000000000ab failed", "request … failed"),
    ("token eyJhbGciOi.eyJzdWIi.c2ln failed", "token … failed"),
    ("image data aGVsbG8gd29ybGQ5aGVsbG8= is broken", "image data … is broken"),
    ("a\n\tb\x00\x1b[31mc", "a b[31mc"),
]


@pytest.mark.parametrize(("said", "shown"), [*((each, each) for each in KEPT), *MASKED])
def test_a_sentence_keeps_its_reason_and_loses_its_content(said: str, shown: str) -> None:
    assert mask(said, RequestTexts(names=NAMES)) == shown


def test_known_secrets_and_long_sentences_are_cut() -> None:
    assert mask("the key is hunter2, as in hunter22", RequestTexts(("hunter2", ""))) == "the key is …, as in …2"
    assert len(mask("word " * 200)) == MAX_SENTENCE_CHARACTERS
    for part in ("x", "x@", "a://", "'"):
        assert len(mask(part * 500_000)) <= MAX_SENTENCE_CHARACTERS, "in bounded time"


@given(st.text(alphabet="abc '\"`{}\n", min_size=1), st.sampled_from("'\"`"))
def test_a_quoted_text_of_several_words_is_never_shown(text: str, quote: str) -> None:
    shown = mask(f"Invalid value {quote}my zebra {text} quagga{quote}")
    assert "zebra" not in shown and "quagga" not in shown


CONTENT = ("You are the desk. Answer in the language of the message.", "My brother Jan Novak has a rash since Tuesday.")


@pytest.mark.parametrize(("said", "shown"), [
    ("Cannot parse My brother Jan Novak has a rash since Tuesday. at line 1", "Cannot parse …. at line 1"),
    ("The text jan NOVAK, has a rash is not allowed", "The text … is not allowed"),
    ("The message must be one of the user's.", "The message must be one of the user's."),
    ("The rash has no room", "The rash has no room"),
    ("This model's maximum context length is 8192 tokens.", "This model's maximum context length is 8192 tokens."),
])  # fmt: skip
def test_words_of_the_request_are_masked_without_quotes(said: str, shown: str) -> None:
    assert mask(said, RequestTexts(content=CONTENT)) == shown


@given(st.lists(st.sampled_from(["zebra", "quagga", "the", "of", "Ünal", "42nd"]), min_size=3, max_size=9))
def test_a_repeated_text_is_never_shown_whole(words: list[str]) -> None:
    shown = mask(f"Bad input. {' '.join(words)}! Try again.", RequestTexts(content=[", ".join(words)]))
    runs = [words[place : place + 3] for place in range(len(words) - 2)]
    assert not any(" ".join(run) in shown for run in runs if not {"the", "of"}.issuperset(run))
    assert MASK in shown or {"the", "of"}.issuperset(words)
