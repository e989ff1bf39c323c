"""``python -m busmq_spark`` is the ``busmq`` command, for where scripts are not on PATH."""

from busmq_spark.cli import main

if __name__ == "__main__":
    main()
