//! Runs `ebb-bench alloc|paging|programs|reclaim`: benchmarks from the command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    ebb_bench::main(std::env::args().skip(1))
}
