"""The settings of the Spark installation: the files of its ``conf`` folders, which Java reads when
it starts.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path


def conf_file_has_word(file: str, word: str) -> bool:
    """Whether a file of that name in a ``conf`` folder has the word in it, in a comment or not."""
    return any(word in text for text in _read_conf_files(file))


def spark_default(name: str) -> str | None:
    """Return the value of a setting in spark-defaults.conf; return None when it has none."""
    lines = [
        line.replace("=", " ", 1).split(maxsplit=1)
        for text in _read_conf_files("spark-defaults.conf")
        for line in text.splitlines()
    ]
    return next((line[1].strip() for line in lines if len(line) == 2 and line[0] == name), None)


def _read_conf_files(file: str) -> list[str]:
    spec = find_spec("pyspark")
    homes = [os.environ.get("SPARK_HOME"), spec and spec.origin and str(Path(spec.origin).parent)]
    folders = [os.environ.get("SPARK_CONF_DIR"), *(f"{home}/conf" for home in homes if home)]
    paths = [Path(folder) / file for folder in folders if folder]
    return [path.read_text(errors="replace") for path in paths if path.is_file()]
