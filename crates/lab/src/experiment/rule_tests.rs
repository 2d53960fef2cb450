use super::*;

fn effect(percent: f64) -> Published {
    Published { effect: Some(percent), significant: true, ..Published::default() }
}

fn null(percent: f64) -> Published {
    Published { significant: false, ..effect(percent) }
}

fn class(mean: f64, ci95: f64, p: &Published) -> Class {
    classify(&Estimate { mean, ci95 }, p, true)
}

#[test]
fn reproduced_is_the_same_direction_significant_and_within_a_factor_of_two() {
    for (mean, ci95) in [(10.0, 1.0), (5.0, 1.0), (20.0, 1.0), (10.0, 9.9)] {
        assert_eq!(class(mean, ci95, &effect(10.0)), Class::Reproduced, "{mean} ± {ci95}");
        assert_eq!(class(-mean, ci95, &effect(-10.0)), Class::Reproduced, "{mean} ± {ci95}");
    }
    // A measured half of a percent is enough for a published percent, if it is not chance.
    assert_eq!(class(0.6, 0.1, &effect(1.0)), Class::Reproduced);
}

#[test]
fn direction_is_significant_with_another_size() {
    assert_eq!(class(4.9, 1.0, &effect(10.0)), Class::Direction);
    assert_eq!(class(20.1, 1.0, &effect(10.0)), Class::Direction);
    // The seeds of a simulator vary so little that any change can be significant. Less than one
    // percent counts as nothing.
    assert_eq!(class(0.9, 0.01, &effect(10.0)), Class::Not);
}

#[test]
fn equivalent_is_an_interval_inside_the_band() {
    assert_eq!(class(0.0, 0.9, &null(0.3)), Class::Equivalent);
    assert_eq!(
        class(0.9, 0.05, &null(0.3)),
        Class::Equivalent,
        "different from zero, and so small"
    );
    assert_eq!(class(-2.0, 0.5, &null(-2.7)), Class::Equivalent, "the publication has it, too");
    assert_eq!(class(2.0, 0.5, &null(-2.7)), Class::Not, "and not the other way");
    // An effect of less than one percent is a null.
    assert_eq!(class(0.0, 0.5, &effect(0.9)), Class::Equivalent);
}

#[test]
fn inconclusive_is_an_interval_that_is_too_wide() {
    assert_eq!(class(0.0, 2.0, &null(0.3)), Class::Inconclusive);
    assert_eq!(class(573.9, 884.7, &null(0.0)), Class::Inconclusive);
    assert_eq!(class(4.0, 5.0, &effect(10.0)), Class::Inconclusive);
    assert_eq!(class(-1.0, 8.0, &effect(10.0)), Class::Inconclusive);
}

#[test]
fn not_is_an_effect_that_the_interval_rules_out() {
    assert_eq!(class(0.0, 1.0, &effect(10.0)), Class::Not);
    assert_eq!(class(-10.0, 1.0, &effect(10.0)), Class::Not);
    assert_eq!(class(-10.0, 12.0, &effect(10.0)), Class::Not);
    assert_eq!(class(5.0, 1.0, &null(0.3)), Class::Not);
}

#[test]
fn not_exercised_is_said_whatever_was_measured() {
    for p in [effect(10.0), null(0.0)] {
        assert_eq!(classify(&Estimate { mean: 0.0, ci95: 0.1 }, &p, false), Class::NotExercised);
        assert_eq!(classify(&Estimate { mean: 10.0, ci95: 0.1 }, &p, false), Class::NotExercised);
    }
}

#[test]
fn a_comparison_published_twice_is_an_effect_if_both_runs_have_it() {
    let twice = |first, again| {
        let again = Some(Run { baseline: 100.0, patched: 100.0 + again });
        Published { again, ..effect(first) }
    };
    assert_eq!(claim(&twice(-40.0, -20.0)), Claim::Effect(-30.0));
    assert_eq!(class(-16.0, 1.0, &twice(-40.0, -20.0)), Class::Reproduced);
    assert_eq!(class(-14.0, 1.0, &twice(-40.0, -20.0)), Class::Direction);
    for (first, again) in [(5.0, -2.0), (-5.0, -0.9), (-0.9, -5.0), (-0.5, 0.5)] {
        assert!(matches!(claim(&twice(first, again)), Claim::Null(_)), "{first} {again}");
    }
    let Claim::Null([from, to]) = claim(&twice(5.0, -2.0)) else { panic!() };
    assert!((from + 2.0).abs() < 1e-9 && (to - 5.0).abs() < 1e-9);
}

#[test]
fn a_publication_is_taken_at_its_own_spread() {
    assert_eq!(claim(&null(0.2)), Claim::Null([-1.0, 1.0]));
    assert_eq!(claim(&Published { spread: Some(4.1), ..null(-2.7) }), Claim::Null([-4.1, 4.1]));
    let interval = Some([-3.0, 2.0]);
    assert_eq!(claim(&Published { interval, ..null(-0.5) }), Claim::Null([-3.0, 2.0]));
}

fn row<'a>(name: &'a str, quantity: &'a str, published: &'a Published, class: Class) -> Row<'a> {
    Row { name, quantity, published, class }
}

#[test]
fn a_quantity_votes_once_and_by_its_worst_row() {
    let (p, q) = (effect(10.0), null(0.0));
    let with = |name: &str| Vote::With(name.into());
    let rows = [
        row("rate", "x", &p, Class::Reproduced),
        row("latency", "x", &p, Class::Direction),
        row("other", "y", &p, Class::Reproduced),
        row("again", "y", &p, Class::Reproduced),
        // If an effect and a null share a quantity, the effect votes.
        row("null", "z", &q, Class::Not),
        row("effect", "z", &p, Class::Reproduced),
    ];
    let wanted =
        [with("latency"), Vote::Counts, Vote::Counts, with("other"), with("effect"), Vote::Counts];
    assert_eq!(votes(&rows), wanted);
}

#[test]
fn a_row_that_set_a_parameter_or_shares_its_number_does_not_vote() {
    let (p, c) = (effect(10.0), Published { calibration: true, ..effect(10.0) });
    let rows = [
        row("rate", "x", &c, Class::Reproduced),
        row("latency", "x", &p, Class::Reproduced),
        row("other", "y", &p, Class::Reproduced),
    ];
    assert_eq!(votes(&rows), [Vote::Calibration, Vote::Calibration, Vote::Counts]);
}

#[test]
fn an_effect_without_a_figure_does_not_vote() {
    let (p, n) = (effect(10.0), Published { figure: false, ..effect(-100.0) });
    let rows = [row("a", "x", &n, Class::Reproduced), row("b", "x", &p, Class::Not)];
    assert_eq!(votes(&rows), [Vote::NoFigure, Vote::Counts]);
}
