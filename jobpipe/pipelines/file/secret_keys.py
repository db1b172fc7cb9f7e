"""Which keys have secrets as their values, and which texts hold a secret in clear."""

from __future__ import annotations

import re
from urllib.parse import unquote

_SECRET_KEY = re.compile(
    r"""(
        password | passwd | passphrase | secret | jaas\.config
        | secret[._-]?(access[._-]?)?key | shared[._-]?access[._-]?(key|signature) | connection[._-]?string
        | (api|auth|private|shared|account|keystore|encryption|signing|subscription)[._-]?key
        | (access|session|auth|bearer|api|refresh|id|sas|security)[._-]?token
        | basic[._-]?auth[._-]?user[._-]?info
        | (\A|[._-])(pass|pwd|credentials?|signature)
        | (\A | (?<!max)(?<!min)(?<!next)(?<!page)(?<!sync)(?<!cursor)(?<!continuation)[._-])token  # no count, no place
        | azure\.sas\.(?!(fixed|token|expiry)\.)[^.]+\.[^.]+(\..+)?  # a container of an account
        | (azure\.account\.key|oauth2\.client\.secret|oauth2\.user\.password|sas\.fixed\.token)\..+  # of which account
    )\Z""",
    re.IGNORECASE | re.VERBOSE,
)
SECRET_KEYS = re.sub(r"#.*|\s", "", _SECRET_KEY.pattern)
"""The regular expression of the keys whose values are secrets, for any case; Java reads it, too."""
_URL_PASSWORD = re.compile(
    r"""
    ://(?!\[)[^/?#@\s"']*:(?!\d+(,[^/?#@]*)?([/?#]|\Z))[^@\s"']+@  # USER:PASSWORD@; digits up to the path are a port
    | \bjdbc:oracle:\w+:[^/@\s]+/[^@\s]+@
    """,
    re.VERBOSE,
)
_URL_KEY = re.compile(r"sig|access[_-]?key", re.IGNORECASE)  # secret in a URL's query; elsewhere too common a word
_PRIVATE_KEY = re.compile(r"-----BEGIN ([A-Z]+ )*PRIVATE KEY-----")
_SETTING = re.compile(r"""(?:(?<!\S)-D|\A|[?&#]|;\s*)([\w.-]+)=["']?([^\s&;,"']+)""")  # of a URL, or of a JVM
_PAIR = r"""\w+=(?:'[^']*'|[^\s']\S*)"""
_CONNECTION = re.compile(rf"\s*{_PAIR}(?:\s+{_PAIR})*\s*")  # libpq's: host=h password=p, and nothing else
_CONNECTION_SETTING = re.compile(r"""(?<!\S)(\w+)='?([^\s']+)""")
_NO_SECRET = re.compile(r"(env|file|enc):|\$|(null|none|true|false)\Z", re.IGNORECASE)


def holds_secret(text: str) -> bool:
    """Whether a text has a password, token or secret in it in clear, as URLs and options of a JVM have.

    >>> holds_secret("jdbc:postgresql://user:secret@host/db"), holds_secret("jdbc:postgresql://user@host:5432/db")
    (True, False)
    """
    if _URL_PASSWORD.search(unquote(text)) or _PRIVATE_KEY.search(text):
        return True
    settings = _SETTING.findall(text)
    if _CONNECTION.fullmatch(text):
        settings += _CONNECTION_SETTING.findall(text)
    named = ((is_secret(key) or _URL_KEY.fullmatch(key), value) for key, value in settings)
    return any(secret and not _NO_SECRET.match(value) for secret, value in named)


def is_secret(key: str) -> bool:
    """Whether the value of a free key, such as an option of Spark's, must be a reference to a secret."""
    return _SECRET_KEY.search(key) is not None
