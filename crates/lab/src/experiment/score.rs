//! Counts how many published effects come out, for each body of work; nulls count apart. Uses
//! [`rule`](super::rule), and rule 1 for comparison.

use std::fmt::Write;
use std::sync::OnceLock;

use super::rule::{Claim, Class, RULE_VERSION, Row, Vote, claim, votes};
use super::runner::{Case, Results};
use crate::scenario::Topic;

/// Votes by class, in the order of [`Class::ALL`].
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Tally([usize; 6]);

impl Tally {
    fn add(&mut self, class: Class) {
        self.0[class as usize] += 1;
    }

    fn plus(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] + other.0[i]))
    }

    /// Returns the number of votes of a class.
    #[must_use]
    pub const fn of(&self, class: Class) -> usize {
        self.0[class as usize]
    }

    /// Returns the number of all votes.
    #[must_use]
    pub fn all(&self) -> usize {
        self.0.iter().sum()
    }

    /// Returns the number of votes that came out as published: reproduced, or equivalent.
    #[must_use]
    pub const fn won(&self) -> usize {
        self.of(Class::Reproduced) + self.of(Class::Equivalent)
    }
}

/// Votes of one body of work.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Source {
    /// Body of work; none for scenarios of the user.
    pub topic: Option<Topic>,
    /// Votes of published effects.
    pub effects: Tally,
    /// Votes of published nulls.
    pub nulls: Tally,
}

impl Source {
    /// Returns the name of the body of work in reports.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self.topic {
            Some(topic) => topic.name(),
            None => "others",
        }
    }
}

/// Score of some results.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Score {
    /// Votes of each body of work that has a row.
    pub sources: Vec<Source>,
    /// Rows without a vote, because their quantity set a parameter.
    pub calibration: Tally,
    /// Rows without a vote, because no figure is published.
    pub no_figure: Tally,
    /// Number of rows for which another row votes.
    pub shared: usize,
    /// Number of rows by rule 1: reproduced, in direction, not.
    pub rule_1: [usize; 3],
    /// Of the voting cases that ran at other sizes: the number with an equal verdict there, and the
    /// number of all.
    pub sizes: (usize, usize),
}

/// Returns every judged case, in order, with its vote.
#[must_use]
pub fn judged(results: &[Results]) -> Vec<(&Results, &Case, Vote)> {
    let cases = || results.iter().flat_map(|r| r.cases.iter().map(move |c| (r, c)));
    let cases: Vec<_> =
        cases().filter_map(|(r, c)| Some((r, c, c.published.as_ref()?, c.class?))).collect();
    let quantity = |r: &Results, c: &Case| format!("{}: {}", r.scenario.name, c.quantity);
    let quantities: Vec<String> = cases.iter().map(|(r, c, ..)| quantity(r, c)).collect();
    let rows: Vec<Row> = cases
        .iter()
        .zip(&quantities)
        .map(|((_, c, published, class), quantity)| Row {
            name: &c.name,
            quantity,
            published,
            class: *class,
        })
        .collect();
    let votes = votes(&rows);
    cases.into_iter().zip(votes).map(|((r, c, ..), vote)| (r, c, vote)).collect()
}

impl Score {
    /// Counts all judged cases.
    #[must_use]
    pub fn of(results: &[Results]) -> Self {
        let mut score = Self::default();
        for (r, case, vote) in judged(results) {
            let (Some(published), Some(class)) = (&case.published, case.class) else { continue };
            if let Some(old) = case.verdict {
                score.rule_1[old as usize] += 1;
            }
            match vote {
                Vote::Calibration => score.calibration.add(class),
                Vote::NoFigure => score.no_figure.add(class),
                Vote::With(_) => score.shared += 1,
                Vote::Counts => {
                    let source = score.source(r.scenario.topic);
                    match claim(published) {
                        Claim::Effect(_) => source.effects.add(class),
                        Claim::Null(_) => source.nulls.add(class),
                    }
                    if let Some(same) = case.survives() {
                        score.sizes.0 += usize::from(same);
                        score.sizes.1 += 1;
                    }
                }
            }
        }
        // The five bodies of work come first, in order; the user's own scenarios come last.
        score.sources.sort_by_key(|s| (s.topic.is_none(), s.topic));
        score
    }

    fn source(&mut self, topic: Option<Topic>) -> &mut Source {
        let at = self.sources.iter().position(|s| s.topic == topic).unwrap_or_else(|| {
            self.sources.push(Source { topic, ..Source::default() });
            self.sources.len() - 1
        });
        &mut self.sources[at]
    }

    /// Returns the sum over all bodies of work except `without`.
    #[must_use]
    pub fn sum(&self, without: Option<Topic>) -> Source {
        let kept = self.sources.iter().filter(|s| without.is_none() || s.topic != without);
        kept.fold(Source::default(), |sum, s| Source {
            topic: None,
            effects: sum.effects.plus(&s.effects),
            nulls: sum.nulls.plus(&s.nulls),
        })
    }

    /// Returns the score in words.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!(
            "Published effects reproduced, by rule {RULE_VERSION} (ebb {}, {}):\n",
            env!("CARGO_PKG_VERSION"),
            COMMIT.get().map_or("no commit known".into(), |c| format!("commit {c}"))
        );
        let line = |text: &mut String, name: &str, t: &Tally, won: Class, classes: &[Class]| {
            if t.all() == 0 {
                return;
            }
            let share = 100.0 * t.of(won) as f64 / t.all() as f64;
            let _ =
                write!(text, "  {name:<22} {:>3} of {:>3} ({share:>3.0} %)", t.of(won), t.all());
            for class in classes.iter().filter(|&&class| t.of(class) > 0) {
                let _ = write!(text, ", {} {}", t.of(*class), class.name());
            }
            text.push('\n');
        };
        let others = [Class::Direction, Class::Inconclusive, Class::NotExercised, Class::Not];
        let lines = |text: &mut String, of: &dyn Fn(&Source) -> Tally, won: Class| {
            for source in &self.sources {
                line(text, source.name(), &of(source), won, &others);
            }
            if self.sources.len() > 1 {
                line(text, "all", &of(&self.sum(None)), won, &others);
                let rest = of(&self.sum(Some(Topic::PcpRefill)));
                line(text, "all but pcp refill", &rest, won, &others);
            }
        };
        lines(&mut text, &|s| s.effects, Class::Reproduced);
        if self.sum(None).nulls.all() > 0 {
            text.push_str("Published nulls (no effect there), equivalent here:\n");
            lines(&mut text, &|s| s.nulls, Class::Equivalent);
        }
        let _ = writeln!(
            text,
            "Without a vote: {} rows that set a parameter ({} of them as published), {} without a published figure, {} that share \
             another row's number.",
            self.calibration.all(),
            self.calibration.won(),
            self.no_figure.all(),
            self.shared
        );
        if self.sizes.1 > 0 {
            let (same, all) = self.sizes;
            let _ = writeln!(text, "At other sizes {same} of {all} verdicts are the same.");
        }
        let [reproduced, direction, not] = self.rule_1;
        let _ = writeln!(
            text,
            "By rule 1, each row a vote: {reproduced} of {} reproduced, {direction} in direction only, {not} not.",
            reproduced + direction + not
        );
        text
    }
}

/// Commit that the program was built from. The program sets it at its start, if it knows it. A `+`
/// at its end means with changes.
pub static COMMIT: OnceLock<&str> = OnceLock::new();

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Estimate;
    use crate::experiment::verdict::Verdict;
    use crate::scenario::{Published, find};

    pub(crate) fn case(name: &str, quantity: &str, published: Published, class: Class) -> Case {
        Case {
            name: name.into(),
            metric: "ops".into(),
            higher_is_better: true,
            published: Some(published),
            arms: vec![],
            effect: Estimate::default(),
            curves: vec![],
            quantity: quantity.into(),
            exercised: class != Class::NotExercised,
            ran_in_first: vec![],
            class: Some(class),
            verdict: Some(Verdict::Reproduced),
            sizes: vec![],
        }
    }

    fn results(name: &str, cases: Vec<Case>) -> Results {
        let text = find(name).unwrap().text;
        let scenario = crate::scenario::Scenario::parse(name, text).unwrap();
        Results { scenario, seeds: 2, first_seed: 0, cases }
    }

    #[test]
    fn effects_count_by_source_and_nulls_apart() {
        let effect = || Published { effect: Some(10.0), ..Published::default() };
        let null = || Published { significant: false, ..effect() };
        let all = [
            results(
                "redis",
                vec![
                    case("a", "1", effect(), Class::Reproduced),
                    case("a again", "1", effect(), Class::Reproduced),
                    case("b", "2", effect(), Class::Direction),
                    case("c", "3", null(), Class::Equivalent),
                    case("d", "4", Published { calibration: true, ..effect() }, Class::Reproduced),
                ],
            ),
            // Equal words in another scenario mean another quantity.
            results("pcp-refill", vec![case("e", "1", effect(), Class::Reproduced)]),
            results("bulk-aging-fio", vec![case("f", "1", effect(), Class::NotExercised)]),
            results(
                "kswapd-mismatch",
                vec![case("g", "1", Published { figure: false, ..effect() }, Class::Reproduced)],
            ),
        ];
        let score = Score::of(&all);
        let found: Vec<_> = score
            .sources
            .iter()
            .map(|s| (s.name(), s.effects.won(), s.effects.all(), s.nulls.won(), s.nulls.all()))
            .collect();
        assert_eq!(
            found,
            [
                ("multi-gen LRU", 1, 2, 1, 1),
                ("batched aging", 0, 1, 0, 0),
                ("pcp refill, CMA", 1, 1, 0, 0)
            ]
        );
        assert_eq!((score.shared, score.calibration.all(), score.no_figure.all()), (1, 1, 1));
        assert_eq!(score.rule_1, [8, 0, 0]);
        let text = score.text();
        assert!(text.starts_with("Published effects reproduced, by rule 2 (ebb "), "{text}");
        assert!(
            text.contains("multi-gen LRU            1 of   2 ( 50 %), 1 direction\n"),
            "{text}"
        );
        assert!(text.contains("batched aging            0 of   1 (  0 %), 1 not exercised\n"));
        assert!(text.contains("all but pcp refill       1 of   3 ( 33 %)"), "{text}");
        assert!(text.contains("By rule 1, each row a vote: 8 of 8 reproduced"), "{text}");
    }

    #[test]
    fn a_verdict_that_does_not_survive_another_size_is_counted() {
        use crate::experiment::runner::AtSize;
        let effect = Published { effect: Some(10.0), ..Published::default() };
        let mut c = case("a", "1", effect, Class::Reproduced);
        assert_eq!(c.survives(), None);
        let at = |size, class| AtSize { size, effect: Estimate::default(), class: Some(class) };
        c.sizes = vec![at(0.5, Class::Reproduced), at(2.0, Class::Reproduced)];
        assert_eq!(c.survives(), Some(true));
        c.sizes[1] = at(2.0, Class::Direction);
        assert_eq!(c.survives(), Some(false));
        assert_eq!(Score::of(&[results("redis", vec![c])]).sizes, (0, 1));
    }
}
