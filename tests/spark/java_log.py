"""What Java logs while a test looks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession


class JavaLog:
    """What Java has logged, as pytest's caplog shows what Python has."""

    def __init__(self, text: Any) -> None:
        self._text = text

    @property
    def text(self) -> str:
        return str(self._text.toString())

    @property
    def messages(self) -> list[str]:
        return self.text.splitlines()


@contextmanager
def java_log(spark: SparkSession, name: str = "busmq.spark") -> Iterator[JavaLog]:
    """The warnings and errors of one logger and those below it; the empty name is that of the
    logger of all.
    """
    jvm: Any = spark._jvm
    log4j = jvm.org.apache.logging.log4j
    text = jvm.java.io.StringWriter()
    layout = log4j.core.layout.PatternLayout.newBuilder().withPattern("%m%n%ex{full}").build()
    appender = log4j.core.appender.WriterAppender.createAppender(
        layout, None, text, "busmq-tests", False, True
    )
    appender.start()
    logger = log4j.LogManager.getLogger(name) if name else log4j.LogManager.getRootLogger()
    before = logger.getLevel()
    log4j.core.config.Configurator.setLevel(logger.getName(), log4j.Level.WARN)
    logger.addAppender(appender)
    yield JavaLog(text)
    logger.removeAppender(appender)
    log4j.core.config.Configurator.setLevel(logger.getName(), before)
