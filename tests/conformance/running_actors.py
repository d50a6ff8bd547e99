"""Tests that cannot hold where actors leave all the time: the transport `sleepy` skips them.

They look up in actors what these keep in memory, count their processes or ledgers, or do something to one
that has to run for it. All that clients see is tested there as well.
"""

from __future__ import annotations

import pytest

ALL = "all tests of the file"
NEED_RUNNING_ACTORS: dict[str, tuple[str, ...]] = {
    # Counters begin at 0 with each start, and stats show who is attached.
    "test_administration": (
        "test_a_check_of_the_stores_publishes_and_reads",
        # The disk fails as one starts.
        "test_a_check_says_why_a_store_fails",
        # A producer that was parked counts against a limit once it is back.
        "test_policies_of_a_non_persistent_topic",
    ),
    # Trims are done, and leftovers sought, a second behind a start.
    "test_compaction": (
        "test_what_was_compacted_may_be_trimmed",
        "test_a_killed_compactor_leaves_the_view_and_a_next_run_works",
        "test_a_form_whose_record_the_disk_refused_stays_until_a_next_one_holds",
        # A partition knows the last request for as long as it runs.
        "test_a_request_that_comes_again_is_the_same_one",
        "test_a_form_that_is_read_in_bulk_outlasts_those_that_follow",
    ),
    # It looks at actors that another controller finds still running.
    "test_controller_dies": ("test_all_that_runs_is_found_again_and_goes_on",),
    "test_metric_figures": (
        "test_readers_are_one_subscription_whose_counts_stay",
        "test_compactions_are_counted_with_their_bytes",
    ),
    "test_non_persistent": ("test_nothing_is_kept_for_later",),
    # Sessions are ended in a dispatcher that runs on, or it is killed.
    "test_batches_in_part": (
        "test_a_batch_comes_again_whose_consumers_session_expired_amid_it",
        "test_acknowledged_parts_of_a_shared_batch_outlast_the_dispatcher",
    ),
    # Its dispatcher forgets what it has in memory whenever it sleeps.
    "test_reading_again": (ALL,),
    # A dispatcher knows whether it created its subscription for as long as it runs.
    "test_refused_administration": (
        "test_a_refused_subscribe_leaves_no_subscription_behind",
        "test_a_refused_subscribe_undoes_a_registration_whose_answer_was_lost",
    ),
    # What a consumer has not acknowledged is a figure of the dispatcher's.
    "test_unreadable_blocks": (
        "test_a_consumer_that_can_decode_it_gets_every_message",
        "test_a_listener_goes_on_and_a_policy_moves_it",
    ),
    # A client is shut down while its consumers sleep: here nobody sees that a process has ended.
    "test_closing_listeners": ("test_an_event_listener_may_end_everything_in_its_first_call",),
    # What an administrator expires is counted by the dispatcher.
    "test_subscription_admin": ("test_old_messages_expire",),
    # Whoever comes back first is served first.
    "test_receiving": ("test_better_priority_levels_are_served_first",),
    "test_topics": ("test_a_topic_in_use_is_deleted_by_force_alone",),
    "test_chunks": ("test_chunks_show_in_the_stats",),
    "test_known_pitfalls": ("test_unacknowledged_messages_of_a_batch_are_counted_down_to_none",),
    "test_stats": (
        "test_properties_show_as_metadata",
        "test_redeliveries_and_limits_show",
        "test_what_stands_still_is_named_with_its_host",
        "test_the_active_consumer_and_readers_show",
    ),
    "test_subscription_modes": (
        "test_it_starts_where_it_is_told_and_is_forgotten_with_its_last_consumer",
        "test_its_type_decides_who_may_join_and_who_gets_what",
    ),
    "test_asyncio_receiving": ("test_batches_and_tables_are_received",),
    "test_flow": (
        "test_the_subscriptions_limit_holds_everybody_until_half_is_acknowledged",
        "test_a_full_queue_is_not_told_of_new_messages_and_misses_none",
        "test_a_burst_is_shared_evenly_by_those_that_have_room",
    ),
    # How many messages wait for their time is in the dispatcher's stats alone.
    "test_delayed_delivery": (
        "test_many_at_once_can_be_delayed",
        "test_what_is_due_and_finds_no_room_is_delayed_no_more",
        "test_each_of_many_can_have_a_time_of_its_own",
        "test_they_wait_for_each_subscription_and_survive_its_dispatcher_and_its_tracker",
        "test_a_tracker_that_stands_still_holds_nothing_else_up_and_loses_nothing",
        "test_acknowledging_before_they_are_due_skips_them",
        "test_the_next_type_of_consumers_decides_anew",
        "test_delays_can_be_switched_off_while_messages_wait",
        "test_an_administrator_is_told_that_messages_wait_for_their_time",
        "test_deleting_the_subscription_or_the_topic_ends_its_tracker",
        "test_skipping_everything_skips_what_waits",
        "test_a_restarted_dispatcher_delivers_nothing_early_before_it_knows_the_policies",
    ),
    "test_retry_letters": (
        "test_a_message_is_retried_until_it_is_moved",
        "test_a_message_whose_copy_is_refused_stays",
    ),
    # Which consumer has which keys depends on the order in which they come back.
    "test_key_shared": (
        "test_questions_about_partitions_and_other_types",
        "test_arrow_tables_are_divided_by_key",
        "test_a_long_key_and_a_lone_row_are_read_from_where_they_are",
        "test_a_killed_dispatcher_gives_no_key_to_a_second_consumer",
        "test_nobody_waits_for_the_keys_of_a_consumer_that_takes_nothing",
        "test_what_a_crashed_consumer_held_goes_to_the_others_in_order",
        "test_keys_stay_with_their_consumers",
        "test_a_nacked_message_comes_back_to_its_keys_consumer",
        "test_a_mixed_batch_goes_to_the_consumer_of_its_first_message",
        "test_the_ordering_key_decides_and_keyless_messages_have_one_consumer",
    ),
    "test_key_figures": (
        "test_ranges_are_halved_by_who_comes_and_given_to_the_right_by_who_goes",
        "test_sticky_consumers_have_what_they_declare",
        "test_the_stats_of_a_subscription_whose_second_consumer_came_later",
    ),
    # This transport keeps all messages, so that none would be lost.
    "test_dead_letters": (
        "test_the_number_of_dead_letters_outlives_consumers_and_connections",
        "test_a_dead_letter_topic_that_keeps_nothing_is_warned_of_once",
    ),
    "test_redrive": ("test_nothing_is_sent_where_it_would_be_lost",),
    # Each sleep ends a ledger; this transport keeps all of them.
    "test_growth": ("test_topics_grow_again_and_stay_grown",),
    "test_several_readers": ("test_a_reader_goes_on_at_what_trimming_left",),
    "test_seeks_of_others": ("test_nothing_is_available_behind_what_trimming_took",),
    "test_settings": (
        "test_consumed_ledgers_go_at_the_next_retention_check",
        "test_a_subscription_that_the_disk_refused_keeps_nothing",
    ),
    # Actors that are killed, frozen or taken away, as their clients notice.
    "test_asyncio_sending": ("test_the_loop_goes_on_while_an_actor_is_slow_to_attach",),
    "test_away": (
        "test_closing_waits_for_nobody_who_is_away",
        "test_a_loop_goes_on_while_all_partitions_are_silent",
        "test_a_loop_is_told_that_all_partitions_are_away",
    ),
    "test_batch_turns": ("test_a_full_partition_passes_its_turn_on_or_is_waited_for",),
    "test_lost_moments": ("test_a_dispatcher_that_does_not_answer_keeps_a_consumer_open_at_no_other",),
    "test_sessions": (
        "test_what_is_sent_again_from_before_checkpoints_is_answered_with_its_id",
        "test_a_disconnected_producers_queue_stays_bounded",
    ),
    "test_given_up": (ALL,),
    "test_incomplete_chunks": (ALL,),
    # They put actors to sleep themselves.
    "test_sleeping": (ALL,),
    "test_parked": (ALL,),
}


def needs_running_actors(test: pytest.Item) -> bool:
    """Whether a test is one of those."""
    names = NEED_RUNNING_ACTORS.get(test.path.stem, ())
    return ALL in names or getattr(test, "originalname", test.name) in names
