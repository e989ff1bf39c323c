"""The environment variables of this package. A value is taken as it is, or refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from difflib import get_close_matches

from busmq_spark.errors import ConfigError

PREFIX = "BUSMQ_"
VARIABLES = (
    "BUSMQ_CLIENT_NAME",
    "BUSMQ_FEDERATION_SECRET",
    "BUSMQ_FEDERATION_SECRETS",
    "BUSMQ_FEDERATION_SECRETS_DIR",
    "BUSMQ_MIRROR_PASSWORD",
    "BUSMQ_MIRROR_SECRET",
    "BUSMQ_OUTBOX_TO",
    "BUSMQ_REDIS_LAYOUT",
    "BUSMQ_REDIS_PASSWORD",
    "BUSMQ_REDIS_PASSWORD_FILE",
    "BUSMQ_REDIS_SERVER",
    "BUSMQ_REDIS_URL",
    "BUSMQ_REDIS_USER",
    "BUSMQ_SENTINEL_MASTER",
    "BUSMQ_TLS_CA",
    "BUSMQ_TLS_CERT",
    "BUSMQ_TLS_KEY",
)
_NEAR = 0.8
"""The least similarity of a name that counts as misspelt. Other names are those of other programs,
as of tests.
"""


def read_variable(name: str) -> str | None:
    """Return the value of a variable; return None where it is not set, or empty.

    Raises ConfigError for a line break at its end, which files and shells leave there.
    """
    value = os.environ.get(name) or None
    if value and value.endswith(("\n", "\r")):
        raise ConfigError(
            reason=(
                f"the environment variable {name} ends with a line break, as text that was read"
                " from a file does; take it off"
            )
        )
    return value


def misspelt_variables() -> Iterator[tuple[str, str]]:
    """Yield each variable whose name is nearly one of ours, with that one."""
    for name in sorted(os.environ):
        if name.upper().startswith(PREFIX) and name not in VARIABLES:
            near = get_close_matches(name.upper(), VARIABLES, n=1, cutoff=_NEAR)
            if near:
                yield name, near[0]
