//! The command `ebb-bench`: runs the benchmark that the first argument names.

use std::process::ExitCode;

fn main() -> ExitCode {
    ebb_bench::main(std::env::args().skip(1))
}
