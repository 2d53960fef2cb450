//! Built-in scenarios, one for each published result.

use ebb_mm::nearest::nearest;

use super::ScenarioError;

/// A built-in scenario.
#[derive(Clone, Copy, Debug)]
pub struct Builtin {
    /// Name of the scenario.
    pub name: &'static str,
    /// Text of the scenario file.
    pub text: &'static str,
}

macro_rules! builtin {
    ($($name:literal),* $(,)?) => {
        /// All built-in scenarios, in the order of `ebb lab list`.
        pub const BUILTIN: &[Builtin] = &[$(
            Builtin { name: $name, text: include_str!(concat!("builtin/", $name, ".toml")) }
        ),*];
    };
}

builtin![
    "bulk-aging-memtier",
    "bulk-aging-memtier-steps",
    "bulk-aging-fio",
    "bulk-aging-fio-hybrid",
    "bulk-aging-mysql",
    "bulk-aging-build",
    "bulk-aging-build-steps",
    "pcp-refill",
    "dirty-ycsb-b",
    "dirty-oom",
    "prefault-build",
    "browsers-32-memcgs",
    "android-cold-start",
    "spark-sort",
    "memcached",
    "redis",
    "mongodb-ycsb",
    "cassandra-ycsb",
    "mariadb-tpcc",
    "postgres-tpcc",
    "hadoop-terasort",
    "fleet-app-switching",
    "kswapd-simoop",
    "kswapd-butt-2019",
    "kswapd-mismatch",
];

/// Finds the built-in scenario `name`.
///
/// # Errors
/// Fails if there is none of this name.
pub fn find(name: &str) -> Result<&'static Builtin, ScenarioError> {
    let names: Vec<&str> = BUILTIN.iter().map(|b| b.name).collect();
    BUILTIN.iter().find(|b| b.name == name).ok_or_else(|| {
        ScenarioError::Unknown(name.into(), nearest(name, names).unwrap_or_default().into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    #[test]
    fn every_file_can_be_read_and_bears_its_name() {
        for b in BUILTIN {
            let scenario = Scenario::parse(b.name, b.text).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(scenario.name, b.name);
            assert!(scenario.measure.seeds >= 10, "{}", b.name);
            assert!(scenario.case.iter().all(|c| c.published.is_some()), "{}", b.name);
        }
    }

    #[test]
    fn a_wrong_key_is_reported_with_its_line_and_the_right_one() {
        let text = BUILTIN[0].text.replace("\nframes", "\nfraems");
        let line = text.lines().position(|l| l.starts_with("fraems")).map(|l| l + 1);
        let error = Scenario::parse("x.toml", &text).unwrap_err().to_string();
        let wanted =
            format!("x.toml:{}: unknown key 'fraems'; did you mean 'frames'?", line.unwrap_or(0));
        assert_eq!(error, wanted);
    }

    #[test]
    fn a_value_that_a_file_may_not_have_may_not_be_set_either() {
        let text = BUILTIN[0].text;
        for (pair, says) in [
            ("machine.cpus=0", "--set: machine.cpus = 0: expected 1 to 1024"),
            (
                "machine.swap={ kind = 'nvme', on_disk = true }",
                "--set: machine.swap: on_disk: expected",
            ),
            ("machine.slab.objects=0", "--set: machine.slab: objects = 0: expected 1 to"),
            (
                "machine.slab={ objects = 9, object_ns = 2000000 }",
                "--set: machine.slab: object_ns = 2000000: expected",
            ),
        ] {
            let error = Scenario::with(text, &[pair.to_owned()]).unwrap_err().to_string();
            assert!(error.starts_with(says), "{error}");
        }
    }

    #[test]
    fn a_wrong_setting_is_reported_with_the_right_one() {
        let fail = |pair: &str| {
            Scenario::with(BUILTIN[0].text, &[pair.to_owned()]).unwrap_err().to_string()
        };
        let two = ["machine.fraems=5", "machine.cpsu=2", "gen.bulkmove=on"].map(str::to_owned);
        let first = Scenario::with(BUILTIN[0].text, &two).unwrap_err().to_string();
        assert_eq!(first, fail(&two[0]));
        assert!(fail("machine.fraems=5").ends_with("did you mean 'frames'?"));
        assert!(fail("gen.bulkmove=on").ends_with("did you mean 'gen.bulk_move'?"));
        assert!(fail("machine.swap.kind=zramm").ends_with("did you mean 'zram'?"));
        assert!(find("memcache").unwrap_err().to_string().contains("did you mean \"memcached\"?"));
    }
    #[test]
    fn a_case_names_arms_that_are_there() {
        let text = find("kswapd-simoop").unwrap().text;
        let told = |from: &str, to: &str| {
            assert!(text.contains(from), "{from}");
            Scenario::parse("x.toml", &text.replacen(from, to, 1)).unwrap_err().to_string()
        };
        let named = "arms = [\"vanilla\", \"clear-v2\"]";
        assert!(
            told(named, "arms = [\"vanila\", \"clear-v2\"]")
                .ends_with("there is no [[arm]] \"vanila\"; did you mean \"vanilla\"?")
        );
        assert!(told(named, "arms = [\"vanilla\"]").contains("two arms at least"));
        let both = format!("{named}\narm = [{{ name = \"a\" }}, {{ name = \"b\" }}]");
        assert!(told(named, &both).contains("not both"));
    }
}
