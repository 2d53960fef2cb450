//! The program `ebb`: runs programs in less memory than they want.

fn main() -> std::process::ExitCode {
    ebb_run::main()
}
