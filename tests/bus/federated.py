"""The contract of the bus, kept by objects of another bus: a bus whose objects are federated to a
server on the same Redis.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from busmq_spark.bus.bus import Bus
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.serve.server import FederationServer
from tests.support import PATIENCE_S

SECRET = "between-us-both-and-no-one-else"


class FederatedBus(Bus):
    """Hands out federated objects where Bus hands out its own. Its Redis is for the test, which
    looks at what is stored.
    """

    def queue(self, name: str) -> Any:
        local = super().queue(name)
        far = self.federate(local)
        for look in ("keys", "run", "server"):
            setattr(far, look, getattr(local, look))
        return far

    def channel(self, name: str, local: str = "local", remote: str = "remote") -> Any:
        return self.federate(super().channel(name, local, remote))

    def service(self, name: str) -> Any:
        return self.federate(super().service(name))

    def pubsub(self, name: str, **options: Any) -> Any:
        return self.federate(super().pubsub(name, **options))

    def persist(self, name: str, *shape: Any, **options: Any) -> Any:
        return self.federate(super().persist(name, *shape, **options))


@contextmanager
def serving(redis_url: str) -> Iterator[str]:
    """A federation server of ours in a thread of its own; the URL."""
    ready: Future[str] = Future()
    loop = asyncio.new_event_loop()
    leave = asyncio.Event()

    async def serve() -> None:
        try:
            async with (
                Bus(redis_url) as bus,
                FederationServer(bus, Keyring.single(SECRET)) as server,
            ):
                ready.set_result(server.url)
                await leave.wait()
        except BaseException as error:
            ready.set_exception(error)
            raise

    thread = threading.Thread(
        target=loop.run_until_complete, args=(serve(),), name="federation", daemon=True
    )
    thread.start()
    yield ready.result(timeout=PATIENCE_S)
    loop.call_soon_threadsafe(leave.set)
    thread.join()
    loop.close()


NO_WAY_BACK = (
    "the wire has no way to give a message back: what was taken and not handed over is kept for"
    " this object's next consumption, then lost"
)
TEXT = "the wire carries text, not bytes"
INSIDE = "it looks into the object of this process"
SIXTY = "federated persisted objects live for 60 s, whatever is asked for (protocol Q19)"
WAIT = "wait=False cannot be said over federation"
AT_ONCE = "a server takes more at once than prefetch says: all messages, before the lease is lost"
ACKS = "npm's servers ack messages with the control frames behind them (protocol Q11)"

RESTARTS = "stopped and begun anew many times in a row, npm's servers now and then lose a message"
OWN_MAXSIZE = "npm's servers go by the pusher's own maxsize (protocol Q1)"
NOT_IN_PARTS = (
    "npm's servers may lose messages when asked for a few at a time, so they are asked for all"
)

GROUPS = "groups are read at the queue's Redis"
EXCEPT = {
    "test_queue::test_what_a_consumer_holds_lives_as_long_as_the_queue": NO_WAY_BACK,
    "test_queue::test_values_are_stored_as_npm_busmq_stores_them": TEXT,
    "test_consume::test_stopping_puts_back_what_was_not_handed_over_in_its_place": NO_WAY_BACK,
    "test_consume::test_a_consumption_never_begun_does_not_hide_the_one_before_it": NO_WAY_BACK,
    "test_consume::test_batches_are_the_messages_in_the_lists_they_came_in": (
        "over the wire messages come one by one"
    ),
    "test_consume::test_what_a_handler_raises_ends_the_scope_with_it_and_the_rest_stays_stored": (
        NO_WAY_BACK
    ),
    "test_consume::test_what_several_consumers_give_back_is_in_order_again": NO_WAY_BACK,
    "test_consume::test_a_waiting_consumer_gets_messages_that_another_gave_back": NO_WAY_BACK,
    "test_consume::test_an_ack_of_an_id_of_an_earlier_life_acks_nothing_of_this_one": (
        "the wire does not say of which life an id is"
    ),
    "test_consume::test_a_second_reliable_consumer_waits_for_the_first_to_end": WAIT,
    "test_consume::test_a_lease_that_redis_forgot_is_had_again": AT_ONCE,
    "test_consume::test_a_consumer_that_waits_for_the_lease_can_be_stopped": WAIT,
    "test_consume::test_who_lost_the_lease_stops_taking_at_once_and_says_so": AT_ONCE,
    "test_channel::test_a_full_peer_refuses_messages_and_learns_of_us_all_the_same_later": (
        "what goes wrong while leaving is not heard any more"
    ),
    "test_channel_reliable::test_a_control_frame_never_acks_a_message": (
        "acks of a channel are not answered, so nobody can wait for one"
    ),
    "test_channel_reliable::test_what_came_before_the_end_can_be_acked_after_it": (
        "acks go with the connection"
    ),
    "test_channel_reliable::test_one_side_has_one_reliable_reader_and_the_next_one_waits": WAIT,
    "test_service_provider::test_expired_and_malformed_requests_are_dropped_with_a_warning": TEXT,
    "test_service_provider::test_a_last_reply_whose_link_broke_is_given_again_a_partial_one_not": (
        INSIDE
    ),
    "test_bus::test_cancelling_the_body_leaves_the_scope": NO_WAY_BACK,
    "test_channel::test_messages_wait_until_they_are_taken": INSIDE,
    "test_channel::test_coming_and_going_is_seen_every_time": INSIDE,
    "test_channel::test_what_is_no_frame_is_an_error_and_reading_goes_on": TEXT,
    "test_pubsub::test_every_subscriber_receives_what_is_published_the_publisher_too": TEXT,
    "test_persistable::test_a_kept_object_lives_and_one_let_go_does_not": SIXTY,
    "test_persistable::test_touch_says_whether_it_is_there_and_persist_takes_a_new_ttl": SIXTY,
    "test_ordered_groups::test_an_ordered_group_goes_on_behind_what_it_has_acked": GROUPS,
    "test_ordered_groups::test_the_others_stand_by_until_the_holder_leaves": GROUPS,
    "test_shared_groups::test_holders_divide_the_messages": GROUPS,
    "test_shared_groups::test_unsettled_messages_come_again_when_a_holder_stops_and_the_try_does_not_count": (  # noqa: E501
        GROUPS
    ),
    "test_shared_groups::test_tries_that_are_used_up_make_a_dead_letter_with_the_reason": GROUPS,
    "test_completions::test_own_ones_those_of_a_queue_and_those_of_a_pattern": GROUPS,
    "test_jobs::test_the_example": GROUPS,
    "test_jobs::test_what_a_handler_raises_is_the_error_of_its_group": GROUPS,
    "test_jobs::test_waiting_later_in_another_process_and_at_once_when_it_is_done": GROUPS,
    "test_jobs::test_outcomes_are_pushed_to_a_queue_where_that_is_asked_for": GROUPS,
    "test_jobs_together::test_many_are_sent_worked_on_and_waited_for_in_their_order": GROUPS,
}
EXCEPT_NPM = {
    "test_consume::test_cancelling_the_task_that_consumes_loses_nothing": RESTARTS,
    "test_service_provider::test_no_more_handlers_run_at_once_than_asked_for": NOT_IN_PARTS,
    "test_service_provider::test_a_provider_with_no_room_leaves_requests_to_others": NOT_IN_PARTS,
    "test_service_provider::test_several_providers_share_what_comes": NOT_IN_PARTS,
    "test_queue::test_a_queue_that_vanished_is_created_again_by_a_client_that_is_attached": (
        "npm's servers do not look whether it has"
    ),
    "test_queue::test_a_full_queue_takes_what_fits_and_says_what_is_left": OWN_MAXSIZE,
    "test_channel_reliable::test_what_was_not_acked_comes_again_in_order_after_a_disconnect": ACKS,
    "test_channel_reliable::test_messages_behind_the_last_one_handed_over_are_not_acked_with_it": (
        ACKS
    ),
}
