"""The rules of every link to Redis, without input and output: when a step is sent, sent again, and
given up.

Each rule is a generator. It yields an action and is sent the result, or the error of redis-py or of
the socket is thrown into it. The drivers (sync_link.py, async_link.py) perform the actions and know
no rule. The rules of a cluster are in cluster_rules.py.

States of a step at one server:

    state       event                                 next
    ----------  ------------------------------------  --------------------------------------------
    CONNECTING  the connection is open                SENT
                it fails, and waiting may mend that   WAITING; Redis has seen nothing
                it fails otherwise                    raised
    SENT        replies without an error              returned
                NOSCRIPT, so not executed             SENT: these calls, with the text of the script
                put off (LOADING …), not executed     WAITING where the step may be repeated:
                                                      it is one call, or each call is idempotent;
                                                      else raised
                another error reply                   raised
                the connection breaks                 WAITING where each call is idempotent; else
                                                      raised: Redis may have executed it
    WAITING     the patience is over                  raised
                the pause is over                     CONNECTING; where another server may take
                                                      over, the master is looked up anew
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeAlias

from busmq_spark.errors import BusError, LinkLost, WritesPaused
from busmq_spark.queue.command_generators import RedisCall, Step
from busmq_spark.redis_io.endpoint import RedisEndpoint, retry_time_s
from busmq_spark.redis_io.resp_codec import calls_of, first_error, unknown_scripts
from busmq_spark.redis_io.retry import LinkRetry
from busmq_spark.redis_io.slots import NodeAddress
from busmq_spark.redis_io.translate import CONNECTION_ERRORS, translate_redis_error


class Connect(NamedTuple):
    """Return the open connection to a node of a cluster, or to the only server; open it if need
    be.
    """

    node: NodeAddress | None = None


class Ask(NamedTuple):
    """Send calls on a connection, and return their replies, errors among them as values."""

    connection: Any
    calls: Sequence[RedisCall]
    whole: bool = False
    """Whether scripts are sent with their text."""


class Send(NamedTuple):
    """Send calls on a connection, and return a handle for one :class:`Receive`."""

    connection: Any
    calls: Sequence[RedisCall]


class Receive(NamedTuple):
    """Return the replies to sent calls, errors among them as values."""

    sent: Any


class Drop(NamedTuple):
    """Close a connection, unless another one has taken its place."""

    connection: Any


class Pause(NamedTuple):
    """Wait."""

    seconds: float


class FindSlots(NamedTuple):
    """Return the slot map: the known one, or the one that a node of the cluster sends."""

    anew: bool = False
    """Whether a known map is no answer."""
    dead: frozenset[NodeAddress] = frozenset()
    """Nodes that are asked last, since they did not answer."""


class ListReplicas(NamedTuple):
    """Return the list of replicas that the sentinels have."""


THROWN = (BusError, *CONNECTION_ERRORS)
"""The errors that a driver throws into a rule. Any other error ends the rule."""
Action: TypeAlias = Connect | Ask | Send | Receive | Drop | Pause | FindSlots | ListReplicas
Rule: TypeAlias = Generator[Action, Any, Any]
Clock: TypeAlias = Callable[[], float]


def run_step(
    step: Step,
    connection: Any,
    endpoint: RedisEndpoint,
    patience_s: float | None,
    clock: Clock,
) -> Rule:
    """Return the reply to a step, or the list of replies, from one server.

    ``connection``: the open one, if there is one. ``patience_s``: seconds a step is tried, a first
    wait for its reply not counted; None is the retry time that fits endpoint and error
    (``retry_time_s``). Raises the error of the first call that failed.
    """
    calls = calls_of(step)
    if not calls:
        return []
    retry = LinkRetry(clock)
    while True:
        try:
            if connection is None:
                connection = yield Connect()
        except CONNECTION_ERRORS as error:
            found = translate_redis_error(error, endpoint)
            yield from wait_for_retry(found, retry, endpoint, patience_s)
            continue
        try:
            replies = yield Ask(connection, calls)
            if (failed := first_error(replies)) is not None:
                failed = yield from ask_with_scripts(connection, calls, replies)
        except CONNECTION_ERRORS as error:
            problem = translate_redis_error(error, endpoint)
            if not is_idempotent(calls):
                raise problem from error
            retry.on_no_reply()
        else:
            if failed is None:
                return step_result(step, replies)
            problem = translate_redis_error(failed, endpoint)
            if not may_be_sent_again(calls, problem):
                raise problem from None
            if endpoint.may_move:
                yield Drop(connection)
        yield from wait_for_retry(problem, retry, endpoint, patience_s)
        connection = None


def ask_with_scripts(connection: Any, calls: Sequence[RedisCall], replies: list[Any]) -> Rule:
    """Send again, with their text, the scripts that Redis does not know, and put their replies in
    place. Return the first error that is left.
    """
    if missing := unknown_scripts(replies):
        again = yield Ask(connection, [calls[i] for i in missing], whole=True)
        for i, reply in zip(missing, again, strict=True):
            replies[i] = reply
    return first_error(replies)


def wait_for_retry(
    error: BusError, retry: LinkRetry, endpoint: RedisEndpoint, patience_s: float | None
) -> Rule:
    """Pause after a failure. Raises the error when waiting does not mend it, or the patience is
    over.
    """
    with retry.pausing(error, retry_time_s(endpoint, error, patience_s)) as pause_s:
        yield Pause(pause_s)


def step_result(step: Step, replies: list[Any]) -> Any:
    """Return the result of a step for its flow: one reply for one call, a list for a list."""
    return replies[0] if isinstance(step, RedisCall) else replies


def is_idempotent(calls: Sequence[RedisCall]) -> bool:
    """Return whether calls may be sent again when Redis may have executed them."""
    return all(call.idempotent for call in calls)


def may_be_sent_again(calls: Sequence[RedisCall], refused: BusError) -> bool:
    """Return whether the calls of a step may be repeated after Redis refused one of them without
    executing it.
    """
    if not isinstance(refused, LinkLost) or not (len(calls) == 1 or is_idempotent(calls)):
        return False
    return not (isinstance(refused, WritesPaused) and all(call.optional for call in calls))
