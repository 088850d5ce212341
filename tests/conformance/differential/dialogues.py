"""Every dialogue there is: importing this registers them all."""

from __future__ import annotations

from conformance.differential import (  # noqa: F401
    dialogue_access,
    dialogue_classic_groups,
    dialogue_cluster,
    dialogue_compaction,
    dialogue_configs,
    dialogue_consumer_groups,
    dialogue_details,
    dialogue_fetch,
    dialogue_frames,
    dialogue_group_admin,
    dialogue_group_changes,
    dialogue_group_offsets,
    dialogue_login,
    dialogue_not_served,
    dialogue_offsets,
    dialogue_one_node,
    dialogue_produce,
    dialogue_share_groups,
    dialogue_time,
    dialogue_topics,
    dialogue_topics_again,
    dialogue_transaction_admin,
    dialogue_transactions,
)
