//! Figures of a window in which the run thrashed (`monitor/thrashing.rs`), and the message about
//! them.

use ebb_swap::{StoreStats, TierName};
use serde::Serialize;

/// Figures of a window in which the run thrashed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// Time at which thrashing was found, in microseconds since the start of the run.
    pub at_us: u64,
    pub lost_percent: u64,
    pub reads: Vec<u64>,
    /// A sufficient limit: with it all pages would be resident.
    pub enough_bytes: u64,
}

impl Finding {
    /// Returns the message for the user.
    pub fn text(&self, limit: u64, stats: &StoreStats) -> String {
        let from: Vec<String> = (stats.tiers.iter().zip(&self.reads))
            .filter(|&(_, &reads)| reads > 0)
            .map(|(tier, reads)| match (tier.name, &tier.path) {
                (TierName::Ram, _) => format!("{reads} from compressed memory"),
                (_, Some(path)) => format!("{reads} from the file in {}", path.display()),
                (name, None) => {
                    let at = tier.address.as_ref().map_or(String::new(), |at| format!(" at {at}"));
                    format!("{reads} from tier {name}{at}")
                }
            })
            .collect();
        let from = if from.is_empty() { "none was read".to_owned() } else { from.join(", ") };
        format!(
            "thrashing: in the last 10 s the program spent {} % of its time waiting for pages ({from}). The limit \
             is {:.1} MiB; --memory-max {}M would be enough. The program goes on; --set gen.min_ttl_ms=N ends such runs.",
            self.lost_percent,
            limit as f64 / 1048576.0,
            self.enough_bytes >> 20
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_says_where_time_went_and_which_limit_would_be_enough() {
        let finding =
            Finding { at_us: 0, lost_percent: 81, reads: vec![3, 0], enough_bytes: 80 << 20 };
        let store = ebb_swap::Store::open(
            &ebb_swap::parse_tiers("ram,file").unwrap(),
            &ebb_swap::Options::default(),
        );
        let text = finding.text(20 << 20, &store.unwrap().stats());
        let start = "thrashing: in the last 10 s the program spent 81 % of its time waiting for pages (3 from \
                     compressed memory). The limit is 20.0 MiB; --memory-max 80M would be enough.";
        assert!(text.starts_with(start), "{text}");
    }
}
