//! Which memcg root reclaim visits next.
