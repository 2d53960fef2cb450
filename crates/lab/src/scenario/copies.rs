//! Copies of memcgs: `copies` of one memcg in the file, each with workloads of its own.

use super::{Scenario, ScenarioFault};
use crate::value::ValueError;

impl Scenario {
    /// Checks that the memcgs can be copied.
    ///
    /// # Errors
    /// Fails for no or too many copies, or if a copied memcg contains others.
    pub(super) fn check_copies(&self) -> Result<(), ScenarioFault> {
        for m in &self.memcg {
            if m.copies == 0 || m.copies > 4096 {
                let what = ValueError::Count("copies", m.copies.into(), "1 to 4096");
                return Err(ScenarioFault::Memcg(m.name.clone(), what));
            }
            let parent = self.memcg.iter().any(|g| g.parent.as_ref() == Some(&m.name));
            if m.copies > 1 && parent {
                let what = ValueError::Rule("copies", "expected 1, others lie in it");
                return Err(ScenarioFault::Memcg(m.name.clone(), what));
            }
        }
        Ok(())
    }

    /// Returns the scenario with every copy as a memcg of its own (`NAME-1` and so on). Each copy
    /// has every workload of the memcg once.
    pub(super) fn with_copies(&self) -> Self {
        let mut all = self.clone();
        if self.memcg.iter().all(|m| m.copies == 1) {
            return all;
        }
        let name = |name: &str, copies, i| match copies {
            1 => name.to_owned(),
            _ => format!("{name}-{i}"),
        };
        all.memcg.clear();
        for m in &self.memcg {
            for i in 1..=m.copies {
                let mut copy = m.clone();
                copy.name = name(&m.name, m.copies, i);
                copy.copies = 1;
                all.memcg.push(copy);
            }
        }
        all.workload.clear();
        for w in &self.workload {
            let named = w.memcg.as_ref();
            let m = self.memcg.iter().find(|m| named.is_none_or(|name| name == &m.name));
            let Some(m) = m else { continue };
            for i in 1..=m.copies {
                let mut copy = w.clone();
                copy.memcg = Some(name(&m.name, m.copies, i));
                all.workload.push(copy);
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use crate::scenario::{Scenario, find};

    fn told(from: &str, to: &str) -> Result<Scenario, String> {
        let text = find("browsers-32-memcgs").unwrap().text;
        assert!(text.contains(from), "{from}");
        Scenario::parse("x.toml", &text.replacen(from, to, 1)).map_err(|e| e.to_string())
    }

    #[test]
    fn each_copy_is_a_memcg_with_its_workload() {
        let s = told("copies = 32", "copies = 3").unwrap().with_copies();
        let names: Vec<&str> = s.memcg.iter().map(|m| m.name.as_str()).collect();
        assert_eq!(names, ["m-1", "m-2", "m-3"]);
        let of: Vec<&str> = s.workload.iter().filter_map(|w| w.memcg.as_deref()).collect();
        assert_eq!(of, names);
    }

    #[test]
    fn impossible_copies_of_a_memcg_are_refused() {
        assert!(told("copies = 32", "copies = 0").unwrap_err().contains("expected 1 to 4096"));
        let child = "copies = 32\n[[memcg]]\nname = \"child\"\nparent = \"m\"";
        assert!(told("copies = 32", child).unwrap_err().contains("others lie in it"));
    }
}
