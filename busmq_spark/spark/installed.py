"""What the installation of Spark says by itself: the files of its ``conf`` folders, which Java reads when it starts."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path


def says(file: str, word: str) -> bool:
    """Whether a file of that name in a ``conf`` folder has the word in it, in a comment or not."""
    spec = find_spec("pyspark")
    homes = [os.environ.get("SPARK_HOME"), spec and spec.origin and str(Path(spec.origin).parent)]
    folders = [os.environ.get("SPARK_CONF_DIR"), *(f"{home}/conf" for home in homes if home)]
    paths = [Path(folder) / file for folder in folders if folder]
    return any(path.is_file() and word in path.read_text(errors="replace") for path in paths)
