//! Measures the cost of background reclaim and whether it keeps up.
//!
//! * `pass`: nanoseconds for each clean folio evicted and for each folio skipped, by kind of list.
//!   Evicted folios only give their frame back, so this is the cost of the engine alone.
//! * `keepup`: kswapd against an allocator that takes a million frames a second, each in a thread.
//! * `turns`: kswapd and that allocator in turns on one processor.

mod keepup;
mod pass;
mod turns;

use std::process::ExitCode;

use clap::Parser;
use keepup::ReclaimError;

/// Nanoseconds a folio of reclaim passes, and kswapd against a fast allocator.
#[derive(Debug, Parser)]
#[command(name = "ebb bench reclaim")]
struct Args {
    /// Rounds; the median is shown.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Folios in a pass.
    #[arg(long, default_value_t = 1 << 19)]
    folios: u32,
    /// Lists, by preset.
    #[arg(long, value_delimiter = ',', default_value = "ebb,k618,k72,classic")]
    lists: Vec<String>,
    /// Frames of the node for kswapd and the allocator.
    #[arg(long, default_value_t = 1 << 20)]
    frames: u32,
    /// Distance of the watermarks in ten-thousandths of the node. At the default, 10, kswapd has
    /// about a millisecond to begin.
    #[arg(long, default_value_t = 10)]
    scale_factor: u64,
    /// Frames that the allocator takes a second.
    #[arg(long, default_value_t = 1_000_000)]
    per_second: u64,
    /// Microseconds from the waking of kswapd to its first step, where both take turns.
    #[arg(long, default_value_t = 50)]
    wake_us: u64,
}

/// Runs `ebb bench reclaim` with these arguments, which leave out the command's name.
pub fn main(args: impl IntoIterator<Item = String>) -> ExitCode {
    let args: Args = match crate::parse("ebb bench reclaim", args) {
        Ok(args) => args,
        Err(code) => return code,
    };
    println!("{:<10} {:>14} {:>14} {:>14}", "lists", "evicted ns", "mapped ns", "skipped ns");
    for row in pass::rows(&args.lists, args.folios.max(1 << 12), args.rounds.max(1)) {
        let [evicted, mapped, skipped] = row.ns;
        println!("{:<10} {evicted:>14.1} {mapped:>14.1} {skipped:>14.1}", row.lists);
    }
    let both = |turns: bool| {
        let (frames, rate) = (args.frames.max(1 << 16), args.per_second.max(1));
        if turns {
            turns::run(frames, rate, args.scale_factor, args.wake_us * 1000)
        } else {
            keepup::run(frames, rate, args.scale_factor)
        }
    };
    for turns in [true, false] {
        let runs: Result<Vec<_>, ReclaimError> =
            (0..args.rounds.max(1)).map(|_| both(turns)).collect();
        match runs {
            Ok(runs) => show(&runs, turns),
            Err(e) => {
                eprintln!("ebb bench reclaim: {e}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

fn show(runs: &[keepup::Outcome], turns: bool) {
    println!("\n{}", if turns { "in turns on one processor:" } else { "a thread each:" });
    for o in runs {
        let us = |q| o.late_ns_at(q) as f64 / 1000.0;
        let allocator = o.allocator_ns.map_or_else(String::new, |ns| format!(" + {ns:.0}"));
        println!(
            "{} frames in {:.3} s, {} direct-reclaim entries ({} before kswapd ran), least free \
             {}, {:.0}{allocator} ns a frame, kswapd woken {} times, ran after {:.0} us \
             (99 %: {:.0}, all: {:.0}), allocator off for {:.1} ms",
            o.taken,
            o.seconds,
            o.direct,
            o.direct_before_it_ran,
            o.least_free,
            o.kswapd_ns,
            o.late_ns.len(),
            us(0.5),
            us(0.99),
            us(1.0),
            o.lost_ns as f64 / 1e6,
        );
    }
    let kept = runs.iter().filter(|o| o.direct == 0).count();
    println!("kept up in {kept} of {} runs", runs.len());
}
