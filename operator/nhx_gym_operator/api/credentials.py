"""What looks like a credential in plain text: one judgement for the CRD's rules and for the operator.

The patterns are written in what RE2 and Python's `re` share. Words and prefixes are those that
`nhx_evals_sdk.agent_eval.runtimes.provenance` redacts, and some more of each kind.
"""

from __future__ import annotations

import re

NAME = (
    r"(?i)(API_?KEY|(ACCESS|PRIVATE|SECRET|SIGNING|ENCRYPTION|SSH|AUTH)_?KEY(_?ID)?|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL"
    r"|(ACCESS|AUTH|BEARER|REFRESH|API)_?TOKEN|(^|[^A-Z0-9])(TOKEN|SECRET|AUTHORIZATION|PAT|PWD))S?(_?[0-9]+)?$"
)
"""A variable or key whose name ends like a credential's: `JUDGE_API_KEY`, `openai_api_key`, `PGPASSWORD`, `TOKEN_2`."""
SPECIAL_TOKEN = r"(?i)(^|_)(STOP|EOS|BOS|PAD|SEP|MASK|UNK|START|END|THINK|IMAGE)_TOKENS?$"
COUNT_NAME, COUNT = r"(?i)TOKENS$", r"^[0-9]{1,9}$"
"""What only sounds like one: `STOP_TOKEN: </s>`, `MAX_TOKENS: "4096"`."""

_ISSUED = r"sk-|nvapi-|gh[opsur]_|github_pat_|glpat-|xox[abeprs]-|xapp-"
VALUE = (
    rf"^\s*(Bearer\s+)?({_ISSUED}|hf_[A-Za-z0-9]{{6}}|-----BEGIN)\S"
    rf"|(^|[^A-Za-z0-9])({_ISSUED}|hf_)[A-Za-z0-9_-]{{16}}"
    r"|(^|[^A-Za-z0-9])((AKIA|ASIA)[0-9A-Z]{16}|AIza[0-9A-Za-z_-]{35})([^0-9A-Za-z_-]|$)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|(^|[^A-Za-z0-9])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\."
    r"|://[^/\s:@]+:[^/\s@]+@"
)
"""A value as keys are issued: with an issuer's prefix, a signed token, a private key, a password in a URL."""

_NAME, _SPECIAL, _COUNT_NAME, _COUNT, _VALUE = map(re.compile, (NAME, SPECIAL_TOKEN, COUNT_NAME, COUNT, VALUE))


def is_credential(name: str, value: str) -> bool:
    """Whether `value`, standing under `name`, looks like a credential in plain text."""
    if not value:
        return False
    harmless = _SPECIAL.search(name) or (_COUNT_NAME.search(name) and _COUNT.search(value))
    return bool((_NAME.search(name) and not harmless) or _VALUE.search(value))
