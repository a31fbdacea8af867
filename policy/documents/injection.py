"""Phrases by which a text speaks to a model instead of informing it (S2-71).

They are looked for in lower case, with one space in the place of everything that is no word. Bounded like the patterns
of secrets.py.
"""

import re

_SOME = r"(?:\w{1,20} ){0,3}"
_RULES = r"(?:instructions?|rules|prompts?|guidelines|directives|safeguards|polic(?:y|ies))"
_PHRASES = re.compile(
    r"\b(?:"
    rf"(?:ignore|disregard|forget|override|bypass) {_SOME}"
    rf"(?:previous|prior|above|earlier|preceding|all|any|your|system|safety) (?:\w{{1,20}} ){{0,2}}{_RULES}"
    r"|you are now (?:a|an|the|in|no longer|free)"
    r"|new system (?:prompt|instructions?|message)"
    rf"|(?:reveal|print|show|repeat|leak|output) {_SOME}(?:system|hidden|initial|developer) (?:prompt|instructions?)"
    r"|do not (?:tell|inform|alert|notify) the (?:user|operator|reviewer|human|administrator)"
    r"|without (?:asking|requesting|waiting)(?: for)? (?:\w{1,20} ){0,2}(?:approval|permission|confirmation)"
    r"|(?:auto|always|automatically) approve"
    r"|(?:jailbreak|developer mode|dan mode)"
    r"|pretend (?:that )?you (?:are|have) (?:\w{1,20} ){0,2}(?:no|not) "
    r")"
)
_TAGS = re.compile(
    r"</?\s{0,3}(?:system|assistant|instructions?|memory_context|untrusted_memory_candidates)\b"
    r"|<\|[a-z_]{1,30}\|>|\[/?inst\]|^#{1,4} ?system ?:",
    re.MULTILINE,
)
_NO_WORD = re.compile(r"\W+")


def injection_at(text: str) -> int | None:
    """Where a text first speaks to a model: an offset for a tag, 0 for a phrase; None where it does not."""
    lowered = text.lower()
    tag = _TAGS.search(lowered)
    if tag is not None:
        return tag.start()
    return 0 if _PHRASES.search(_NO_WORD.sub(" ", lowered)) else None
