"""Masks a provider's sentence: what explains the refusal stays, what may be content or a secret becomes `…`."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from perdure.core.calls.secrets import MASK, without_secrets

MAX_SENTENCE_CHARACTERS: Final = 300
"""Maximum length of a masked sentence."""
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/\[\]-]{0,63}")
"""A name of a parameter, a tool or a model."""
CODE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""A provider's code."""

_VENDOR_WORD = re.compile(
    r"""
    additional | all | any | api | array | assistant | auto | beta | bias | boolean | budget | cache | call | calls
    | choice | completion | config | const | content | control | data | default | definitions | defs | deployment |
    description | developer | effort | enabled | enum | file | format | frequency | function | functions |
    generation | high | id | image | include | input | integer | items | json | k | key | length | logprobs | low |
    max | maximum | medium | message | messages | metadata | min | minimal | minimum | model | models | n | name |
    names | none | not | null | number | object | of | one | openai | options | organization | output | p | parallel
    | parameter | parameters | pattern | penalty | presence | project | prompt | properties | property | reasoning |
    ref | region | required | response | role | schema | seed | service | stop | stream | strict | string | system |
    temperature | text | thinking | tier | title | token | tokens | tool | tools | top | type | url | usage | use |
    user | version | x
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""The words of which vendors' names of parameters and JSON Schema's keywords consist."""
_FUNCTION_WORD = re.compile(
    "a|an|and|are|as|at|be|been|but|by|can|cannot|could|do|does|for|from|has|have|if|in|is|it|its|may|must|no|of|on|only"
    "|or|should|than|that|the|their|there|these|they|this|to|used|was|we|were|when|which|with|would|you|your",
    re.IGNORECASE,
)
"""English words that carry no content."""
_CONTENT_WORD = re.compile(r"\w+")
_RUN = 3
"""Number of words in a row that a sentence of the provider has from the request only if it repeats them."""
_SEGMENT = re.compile(r"[^.\[\]/:]+")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[^A-Za-z0-9_$-]+")
_NUMBER = re.compile(r"[-+]?[0-9][0-9.,]{0,15}")
_BRACES = re.compile(r"\{.*\}|\{.*$", re.DOTALL)
_FROM_BRACE = re.compile(r"\{.*$", re.DOTALL)
_ECHO = re.compile(r"\b(got|received|input|input_value)(\s*[:=]\s*).+", re.IGNORECASE | re.DOTALL)
"""The provider repeats a part of the request, without quotes."""
_SCHEME = r"(?:bearer|basic|token|negotiate|ntlm|api-?key|key|dpop)"
_SCHEMES_OF_PAIRS = r"(?:digest|aws4-hmac-sha256|oauth|hawk|signature)"
_SECRET_NAME = r"""
    (?: pass(?:words?|wd|phrase) | pwd | secrets? | token | credentials? | authorization
      | (?:api|access|account|auth|encryption|master|private|secret|shared|signing|subscription)[-_]?key )
    (?![A-Za-z0-9_])
"""
"""The end of a name whose value is a secret, such as `client_secret`, `X-Api-Key` or `accessToken`."""
_SEPARATOR = r"""(?: \\{0,7}["'`] \s* (?:[:=]>?|,) | \s* [:=]>?(?!//) | %3[AD] | > ) \s*"""
_QUOTED = r"""
    [bru]{0,2} (?P<quote>\\{0,7}["'`]) (?: (?!(?<!\\)(?P=quote)(?!\w)). )* (?P<closing>(?P=quote)?)
"""
"""A quoted value, up to the quote that ends it, or to the end of a text that was cut."""
_BRACED = r"""
    [\w.]{0,64} [\[({] (?: '(?:\\.|[^'\\])*+(?:'|\Z) | "(?:\\.|[^"\\])*+(?:"|\Z) | [^\])}'"] )*+ \S*
"""
"""A list, a mapping, or the representation of an object such as `SecretStr('...')`. It can be a password with a bracket
too, so what follows without a space is a part of it."""
_VALUE = re.compile(
    rf"""
    (?P<name>
        {_SECRET_NAME} {_SEPARATOR}
      | --(?:[a-z]{{1,32}}-){{0,3}} {_SECRET_NAME} \s+ (?!-)
      | \b (?:key|token|password|secret|authorization) \b [^:=.]{{0,24}} [:=](?!//) \s*
    )
    (?: {_QUOTED} | {_BRACED} | {_SCHEMES_OF_PAIRS} [ ] [^\r\n]* | (?:{_SCHEME} \s+ | [|>][+-]? \s+)? \S+ )
    """,
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
_COOKIE = re.compile(
    rf"""
    (?P<name> \b (?:set-)? cookies? (?: {_SEPARATOR} | \s+ (?=[^\s=;"'`]{{1,128}}=) ) )
    (?: {_QUOTED} | {_BRACED} | (?=[^\s=;]{{1,128}}=) [^\r\n]* )
    """,
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
_CREDENTIALS = re.compile(
    r"""
    (?P<name> \b bearer \s+ ) (?! (?:tokens?|auth\w*|credentials?|schemes?|of|is|was) \b ) \S+
    | (?P<scheme> \b (?:basic|token) [ ]+ )
      (?= [A-Za-z+/_-]{0,128} (?: [0-9=] | (?-i: (?<=[a-z]) [A-Z] ) ) ) [A-Za-z0-9+/_.-]{8,} =*
    """,
    re.IGNORECASE | re.VERBOSE,
)
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)", re.DOTALL
)
_EMAIL = re.compile(r"(?<!\S)\S[^\s@]*+@\S+?\.\S+")
_URL_WITH_MORE = re.compile(r"\b[a-z][a-z0-9+.-]{0,31}://\S*?[@?#]\S*", re.IGNORECASE)
"""Credentials, a query or a fragment."""
_KEY = re.compile(r"(?<!\S)\S*?\*{2,}\S*|\b(?:sk|pk|rk|xai|gsk|hf|ghp|xox[a-z]|AKIA|AIza|eyJ)[-_A-Za-z0-9]{6,}\S*")
_UUID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE)
_QUOTES = {"'": "'", '"': '"', "`": "`", "“": "”", "‘": "’", "«": "»", "„": "“"}
_AROUND = "".join({*_QUOTES, *_QUOTES.values(), *".,;:()[]"})
"""The characters around a name in a sentence."""
_SEPARATORS = re.compile(r"[^A-Za-z0-9+=]+")
_MAX_READ_CHARACTERS = 5_000
"""The rest of a text is not read. The time grows faster than its length."""
_MAX_SEARCHED_CHARACTERS = 20_000
"""The part of a text whose white space is joined, so that it can become shorter than what is read."""
_LONG_MIXED, _LONG, _MIXED = 16, 32, 4


@dataclass(frozen=True, slots=True)
class RequestTexts:
    """The texts of a request that the provider's sentence can repeat."""

    secrets: Collection[str] = ()
    """Values of keys and headers. They are always masked."""
    names: Collection[str] = ()
    """Names of the model, parameters and tools. They stay."""
    content: Collection[str] = ()
    """Texts of the messages. Words that are repeated from them are masked, also without quotes."""


NO_TEXTS: Final = RequestTexts()


def mask(text: str, request: RequestTexts = NO_TEXTS) -> str:
    """Returns `text` without what may be content of the request or a secret, at most MAX_SENTENCE_CHARACTERS long.

    Quoted numbers stay, and so do quoted names of parameters, of JSON Schema's keywords and of the request. Any other
    quotation is masked up to the last quote of its kind, because it may contain quotes. Three or more words in a row
    that the request's content has too are masked, unless they are all common words. So are objects in braces, e-mail
    addresses, URLs with more than a path, keys, long tokens and secrets.
    """
    is_cut = len(text) > _MAX_SEARCHED_CHARACTERS
    text = without_secrets(text, request.secrets, _MAX_SEARCHED_CHARACTERS)
    text = " ".join(text.split())
    text = "".join(character for character in text if character.isprintable())
    is_cut = is_cut or len(text) > _MAX_READ_CHARACTERS
    if is_cut:
        text = text[:_MAX_READ_CHARACTERS].rpartition(" ")[0] or text[:_MAX_READ_CHARACTERS]
    text = (_FROM_BRACE if is_cut else _BRACES).sub(f"{{{MASK}}}", text)
    text = _masked_quotations(text, request.names, is_cut=is_cut)
    text = _masked_content(text, request)
    for pattern in (_URL_WITH_MORE, _EMAIL, _KEY, _UUID):
        text = pattern.sub(MASK, text)
    text = _without_named_values(text)
    text = _ECHO.sub(rf"\1\2{MASK}", text)
    text = " ".join(
        MASK if _is_token(word) and word.strip(_AROUND) not in request.names else word for word in text.split()
    )
    return text if len(text) <= MAX_SENTENCE_CHARACTERS else text[: MAX_SENTENCE_CHARACTERS - 1] + MASK


def mask_secrets(text: str, secrets: Collection[str]) -> str:
    """Returns `text` without these secrets, as `without_secrets` does, and without what looks like one: keys, tokens,
    passwords, cookies, credentials of headers, and URLs with more than a path. Everything else stays, but a long text
    is cut."""
    text = without_secrets(text, secrets, _MAX_READ_CHARACTERS)
    text = _without_named_values(_PRIVATE_KEY.sub(MASK, text))
    for pattern in (_URL_WITH_MORE, _KEY):
        text = pattern.sub(MASK, text)
    return text


def _without_named_values(text: str) -> str:
    for pattern in (_COOKIE, _VALUE, _CREDENTIALS):
        text = pattern.sub(_masked_value, text)
    return text


def _masked_value(match: re.Match[str]) -> str:
    parts = match.groupdict()
    name = parts["name"] or parts.get("scheme") or ""
    return f"{name}{parts.get('quote') or ''}{MASK}{parts.get('closing') or ''}"


def _masked_quotations(text: str, names: Collection[str], *, is_cut: bool) -> str:
    """Masks quotations. In a text that is cut, the last quote may be missing, so all after the first is masked."""
    done, place = [], 0
    while place < len(text):
        character = text[place]
        if character not in _QUOTES or (character == "'" and _is_letter(text, place - 1)):
            done.append(character)
            place += 1
            continue
        end = _closing(text, place, last=False)
        inside = text[place + 1 : end]
        if not (_is_name(inside, names) or _NUMBER.fullmatch(inside)) or end == len(text):
            end = len(text) if is_cut else _closing(text, place, last=True)
            inside = MASK
        done.append(character + inside + text[end : end + 1])
        place = end + 1
    return "".join(done)


def _masked_content(text: str, request: RequestTexts) -> str:
    """Masks each run of words that the request's content has in the same order."""
    content = [f" {' '.join(_CONTENT_WORD.findall(each)).casefold()} " for each in request.content]
    words = list(_CONTENT_WORD.finditer(text))
    repeated: set[int] = set()
    for place in range(len(words) - _RUN + 1):
        run = [word[0] for word in words[place : place + _RUN]]
        sought = f" {' '.join(run).casefold()} "
        if not all(_says_nothing(word, request.names) for word in run) and any(sought in each for each in content):
            repeated.update(range(place, place + _RUN))
    done, end = [], 0
    for place in sorted(repeated):
        word = words[place]
        done.append("" if place - 1 in repeated else text[end : word.start()] + MASK)
        end = word.end()
    return "".join(done) + text[end:]


def _says_nothing(word: str, names: Collection[str]) -> bool:
    """Returns whether the word alone carries no content: a common word, a word of vendors' names, or a name."""
    return word in names or bool(_FUNCTION_WORD.fullmatch(word) or _VENDOR_WORD.fullmatch(word))


def _is_name(text: str, names: Collection[str]) -> bool:
    """Returns whether each segment of a path is a name of the request or consists of words of the vendors' names."""
    return text in names or (
        NAME.fullmatch(text) is not None
        and all(
            segment in names or all(_VENDOR_WORD.fullmatch(word) for word in _WORD.findall(segment))
            for segment in _SEGMENT.findall(text)
        )
    )


def _closing(text: str, start: int, *, last: bool) -> int:
    """Returns the place of the first or last quote that can end the quotation at `start`; the text's end if none."""
    quote = _QUOTES[text[start]]
    places = [
        place
        for place in range(start + 1, len(text))
        if text[place] == quote and not (quote == "'" and _is_letter(text, place + 1))
    ]
    return places[-1 if last else 0] if places else len(text)


def _is_letter(text: str, place: int) -> bool:
    return 0 <= place < len(text) and text[place].isalnum()


def _is_token(word: str) -> bool:
    """Returns whether a word looks like a key or an encoded value. Names of models and parameters are short parts."""
    parts = _SEPARATORS.split(word)
    mixed = [part for part in parts if not part.isalpha() and not part.isdigit() and len(part) >= _MIXED]
    return len(mixed) >= 3 or any(
        len(part) >= _LONG or (len(part) >= _LONG_MIXED and not part.isalpha()) for part in parts
    )
