"""The Java source is the Python source in another language: its tests of planning, losses and caps run against both, as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.java_log import JavaLog, java_log
from tests.spark.jvm_engine import JvmEngine
from tests.spark.test_acks import (  # noqa: F401  # as below; capped is their fixture
    capped,
    test_a_checkpoint_that_ends_with_an_idle_batch_goes_on,
    test_a_query_that_is_idle_plans_one_batch_without_rows_so_that_its_last_messages_leave,
    test_async_progress_tracking_that_commits_in_time_by_chance_is_found_out_by_the_batch_after,
    test_one_that_has_seen_how_spark_logs_needs_no_such_batch,
    test_the_start_after_a_restart_is_in_the_logs,
    test_where_spark_never_commits_an_idle_query_gives_up_after_a_few_batches,
    test_with_ack_none_an_idle_query_plans_nothing,
    test_with_async_progress_tracking_nothing_is_acknowledged_before_it_is_in_the_logs,
)
from tests.spark.test_damaged import (  # noqa: F401  # as below
    test_a_counter_that_is_no_id,
    test_a_key_of_another_kind,
    test_a_position_of_a_subscription_that_is_no_id,
    test_a_second_driver_on_a_copy_of_the_checkpoint_names_who_reads,
    test_an_id_in_the_list_that_is_none,
)
from tests.spark.test_discovery import (  # noqa: F401  # as below; crowded and often are their fixtures
    crowded,
    often,
    test_a_search_that_breaks_off_is_made_again,
    test_available_now_reads_every_queue_that_is_there_and_none_that_comes_later,
    test_planning_walks_over_no_keys_once_the_query_runs,
)
from tests.spark.test_entry import (  # noqa: F401  # as below; read is their fixture
    read,
    test_a_checkpoint_counts_and_not_the_start,
    test_a_start_above_the_last_id_says_what_to_do,
    test_a_start_behind_unread_messages_is_an_error_and_deletes_nothing,
    test_a_subscription_that_has_messages_waiting_does_not_skip_them_with_another_checkpoint,
    test_ack_none_deletes_nothing_so_it_may_begin_anywhere,
    test_discard_backlog_deletes_it_with_a_warning,
    test_latest_of_an_empty_or_new_queue_is_no_error,
    test_what_comes_while_a_query_enters_is_neither_passed_over_nor_deleted,
    test_what_waits_for_another_subscription_stays_so_a_new_one_may_begin_behind_it,
    test_where_everything_before_the_start_has_left_nothing_is_deleted,
)
from tests.spark.test_eviction import (  # noqa: F401  # as below; policy and policed are their fixtures
    policed,
    policy,
    test_a_redis_that_evicts_is_refused_where_that_is_asked_for,
    test_a_redis_that_evicts_is_warned_about_once,
)
from tests.spark.test_hold import (  # noqa: F401  # they are the tests of this file
    test_a_named_queue_that_does_not_exist_is_created_to_live_a_week,
    test_a_pattern_must_match_the_whole_name_and_creates_nothing,
    test_a_query_that_lost_its_lease_while_it_was_cut_off_stops,
    test_a_queue_that_appears_while_the_query_runs_is_read_from_its_first_message,
    test_a_queue_that_was_found_by_a_pattern_and_expired_is_missed_at_the_next_start,
    test_a_queue_whose_name_has_commas_is_named_in_a_json_list,
    test_a_queue_with_a_long_ttl_and_one_that_is_created_are_not_warned_about,
    test_a_queue_with_a_short_ttl_is_touched_while_a_query_idles,
    test_a_reader_without_subscription_is_refused_where_others_have_one,
    test_a_redis_that_is_full_can_be_drained_and_then_takes_messages_again,
    test_a_second_query_on_a_queue_is_refused,
    test_a_second_query_that_removes_nothing_is_welcome,
    test_a_subscription_is_refused_where_a_query_without_one_runs,
    test_a_subscription_keeps_its_messages_while_its_query_is_down,
    test_a_subscription_on_a_queue_that_began_a_new_life_drops_nothing_of_it,
    test_a_subscription_that_is_added_while_a_batch_waits_to_be_read_keeps_the_messages_of_that_batch,
    test_an_existing_queue_keeps_its_own_ttl_and_a_short_one_is_warned_about,
    test_queues_of_several_servers_are_found_and_read,
    test_the_keep_alive_ends_with_the_reader,
    test_two_subscriptions_each_read_everything_and_a_message_leaves_when_both_have_acked_it,
    test_with_fail_on_data_loss_false_a_queue_of_a_pattern_may_come_and_go,
    test_without_create_queue_a_missing_queue_is_an_error_and_stays_missing,
)
from tests.spark.test_keep_alive import (  # noqa: F401  # as above; two is their fixture
    test_a_server_or_node_that_is_dead_ends_no_queue_and_no_lease_of_another,
    two,
)
from tests.spark.test_late_subscription import (  # noqa: F401  # as above
    test_a_late_subscription_is_warned_about_the_messages_that_are_gone_for_it,
    test_a_late_subscription_that_asks_for_the_first_message_is_refused,
    test_a_late_subscription_with_data_loss_allowed_goes_on_with_a_warning,
    test_a_subscription_that_misses_nothing_is_not_warned_about,
)
from tests.spark.test_limits import (  # noqa: F401  # as above
    test_a_large_message_waits_one_batch_at_most_while_other_queues_are_busy,
    test_a_message_larger_than_the_whole_budget_passes_alone,
    test_a_trigger_with_fewer_messages_than_queues_serves_all_of_them_in_turn,
    test_available_now_acknowledges_its_last_batch_before_it_ends,
    test_available_now_ends_with_what_was_there_when_it_began,
    test_available_now_without_news_ends_at_once,
    test_max_bytes_per_trigger_counts_the_bytes_of_values,
    test_max_messages_per_trigger_is_shared_fairly_and_what_small_queues_leave_is_used,
    test_of_both_caps_the_tighter_one_holds,
    test_queues_are_cut_into_tasks_and_the_rows_stay_the_same,
    test_the_budget_of_bytes_is_shared_by_queues,
    test_trigger_once_takes_everything_whatever_the_caps,
)
from tests.spark.test_loss import (  # noqa: F401  # as above; query is their fixture
    query,
    test_a_named_queue_that_may_not_be_created_is_missed,
    test_a_query_that_is_started_again_says_what_happened_meanwhile,
    test_a_replay_does_not_take_another_life_of_the_queue_for_its_own,
    test_a_running_query_says_it_too,
    test_a_start_that_is_gone_is_a_loss,
    test_an_ack_is_refused_when_the_message_is_another_one,
    test_an_empty_database_is_told_from_an_expired_queue,
    test_everything_read_and_acked_is_no_loss_when_messages_are_deleted,
    test_holes_are_a_loss_unless_that_is_allowed,
    test_holes_in_the_ids_of_a_queue_that_two_kinds_of_consumers_left_are_read_around,
    test_messages_that_go_between_planning_and_reading_fail_the_task,
    test_with_fail_on_data_loss_false_a_query_goes_on_from_the_oldest_message_and_counts,
    test_with_fail_on_data_loss_false_a_task_reads_what_is_left_of_its_range,
)
from tests.spark.test_reader import (  # noqa: F401  # as above
    test_a_checkpoint_of_another_source_is_refused,
    test_a_queue_added_to_subscribe_is_read_from_its_oldest_message_even_with_latest,
    test_a_queue_taken_out_of_subscribe_is_not_read_any_more,
    test_a_start_after_the_newest_message_is_refused,
    test_lag_is_the_newest_id_minus_the_end_of_the_batch,
    test_latest_means_what_was_newest_when_the_first_batch_was_planned,
    test_nothing_new_is_the_same_offset_again,
    test_starting_offsets_as_json_name_the_last_id_that_is_done,
    test_starting_offsets_count_only_for_a_fresh_checkpoint,
    test_the_offset_is_the_last_id_of_each_queue,
)
from tests.spark.test_rollback import (  # noqa: F401  # as above; planned is their fixture
    planned,
    test_a_rollback_while_a_task_reads_fails_it_behind_its_last_row,
    test_a_task_reads_no_message_that_was_given_a_planned_id_later,
    test_with_fail_on_data_loss_false_the_batch_is_left_out_and_the_next_begins_with_the_oldest_message,
)


@pytest.fixture
def engine(spark: SparkSession, shim_jar: Path) -> Iterator[Callable[..., JvmEngine]]:
    """Makes engines around the Java source."""
    made: list[JvmEngine] = []

    def make(options: dict[str, Any], *, spark40: bool = False) -> JvmEngine:
        assert not spark40
        made.append(JvmEngine(spark, options))
        return made[-1]

    yield make
    for one in made:
        one.reader.stop()


@pytest.fixture
def caplog(spark: SparkSession, shim_jar: Path) -> Iterator[JavaLog]:
    """In the place of pytest's: the warnings of the Java module."""
    with java_log(spark) as log:
        yield log
