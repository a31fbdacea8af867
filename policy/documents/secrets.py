"""What a secret looks like: keys of clouds, tokens, private keys, database URLs with a password, kubeconfig (S2-71).

Every repetition in these patterns has a bound and is followed by something that it cannot match itself, so a hostile
text of 100,000 bytes costs time in proportion to its length (a test measures it).
"""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

SECRETS: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {
        "cloud_key": re.compile(
            r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"
            r"|(?i:\baws_?secret_?(?:access_?)?key[\"']?\s{0,3}[=:]\s{0,3}[\"']?[A-Za-z0-9/+]{40})"
            r"|\bAIza[0-9A-Za-z_-]{35}"
            r"|\bya29\.[0-9A-Za-z_-]{20}"
            r"|\"private_key_id\"\s{0,5}:\s{0,5}\"[0-9a-f]{40}\""
            r"|(?i:\b(?:Account|SharedAccess)Key=[A-Za-z0-9+/]{40})"
        ),
        "token": re.compile(
            r"\bgh[pousr]_[A-Za-z0-9]{36}"
            r"|\bgithub_pat_[A-Za-z0-9_]{22}"
            r"|\bglpat-[A-Za-z0-9_-]{20}"
            r"|\bxox[abeoprs]-[A-Za-z0-9-]{10}"
            r"|\b[rs]k_live_[A-Za-z0-9]{16}"
            r"|\bsk-(?:ant-|proj-)?[A-Za-z0-9_-]{20}"
            r"|\bnpm_[A-Za-z0-9]{36}"
            r"|\bhf_[A-Za-z0-9]{30}"
            r"|\bSG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}"
            r"|\beyJ[A-Za-z0-9_-]{8,200}\.eyJ[A-Za-z0-9_-]{8}"
            r"|(?i:\bauthorization[\"']?\s{0,3}[=:]\s{0,3}[\"']?(?:bearer|basic)\s{1,3}[A-Za-z0-9._~+/-]{16})"
        ),
        "private_key": re.compile(r"-----BEGIN (?:[A-Z]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----"),
        "database_url": re.compile(
            r"(?i:\b(?:postgres(?:ql)?|mysql|mariadb|mongodb(?:\+srv)?|rediss?|amqps?|mssql|oracle|clickhouse)"
            r"(?:\+[a-z0-9]{1,20})?://[^\s:/@]{0,100}:[^\s/@]{1,200}@)"
        ),
        "kubeconfig": re.compile(
            r"\b(?:client-key|client-certificate|certificate-authority)-data\s{0,5}:\s{0,5}[A-Za-z0-9+/=]{20}"
        ),
    }
)


def secrets_in(text: str) -> Iterator[tuple[str, int]]:
    """(kind, offset) of the first secret of each kind."""
    for kind, pattern in SECRETS.items():
        found = pattern.search(text)
        if found is not None:
            yield kind, found.start()
