//! Benchmarks of Ebb's own parts. Comparisons with other projects live in `ebb-versus`.

pub mod alloc;
pub mod paging;
pub mod reclaim;

use std::process::ExitCode;

/// Runs the benchmark that the first of `args` names.
pub fn main(args: impl IntoIterator<Item = String>) -> ExitCode {
    let mut args = args.into_iter();
    match args.next().as_deref() {
        Some("alloc") => alloc::main(args),
        Some("paging") => paging::main(args),
        Some("reclaim") => reclaim::main(args),
        // What `paging` starts.
        Some("paging-load") => paging::load(args),
        _ => {
            eprintln!("usage: ebb bench alloc|paging|reclaim [--help]");
            ExitCode::from(2)
        }
    }
}
