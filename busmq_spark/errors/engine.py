"""Errors of the choice of an engine, and of the jar with the Java one."""

from __future__ import annotations

from busmq_spark.errors.base import BusError


class EngineError(BusError):
    """Option ``engine`` asks for Java or Python where that one cannot do what the other options
    say, or is not there.
    """

    code = "BUSMQ_ENGINE"
    template = "engine={engine} is not possible: {reason}. {remedy}"
    remedy = "Leave `engine` out, or do what the message names."


class JarVersionError(BusError):
    """The jar with the Java engine is of another version than the Python package that is to work
    with it, or than a second jar.
    """

    code = "BUSMQ_JAR_VERSION"
    template = (
        "{found}. Start Spark with the jar of the installed package only: busmq jar prints its"
        " path, and in a source tree make jar builds it"
    )
