//! `ebb-bench alloc|paging|reclaim`: benchmarks from the command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    ebb_bench::main(std::env::args().skip(1))
}
