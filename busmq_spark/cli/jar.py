"""``busmq jar``: where the Java module is, for Sparks that are started from outside Python."""

from busmq_spark.cli.options import JsonOption
from busmq_spark.cli.output import CliOutput
from busmq_spark.spark.java_runtime import require_jar


def jar(*, as_json: JsonOption = False) -> None:
    """Print the path of the jar with the real-time source and sink, the catalog and the checkpoint
    file manager.

    ```
    spark-submit --jars "$(busmq jar)" job.py
    ```
    """
    out = CliOutput(as_json)
    path = str(require_jar())
    if as_json:
        out.print_json(jar=path)
    else:
        print(path)
