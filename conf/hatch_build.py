"""Puts the jar of the Java module into what is built from this tree, if Maven has made one: a wheel
without it does all but what needs it.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

JAR = "jvm-shim/target/busmq-spark-shim.jar"


class Jar(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        jar = Path(self.root) / JAR
        if version != "editable" and not jar.is_file():
            self.app.display_warning(
                f"{JAR} is not there: what is built lacks the Java module (real-time mode, SQL"
                " catalog). `make dist` builds it first"
            )
        elif version != "editable":
            # A source package keeps it where a wheel that is built from that package looks for it.
            build_data["force_include"][str(jar)] = (
                JAR if self.target_name == "sdist" else f"busmq_spark/jars/{jar.name}"
            )
