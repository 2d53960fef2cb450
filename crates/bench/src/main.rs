//! `ebb-bench alloc`: benchmarks from the command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        Some("alloc") => ebb_bench::alloc::main(args),
        _ => {
            eprintln!("usage: ebb-bench alloc [--help]");
            ExitCode::from(2)
        }
    }
}
