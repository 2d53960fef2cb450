//! The end-to-end tests, one file for each theme. `./test e2e` runs each test in a process of its
//! own. By hand: `cargo test -p ebb-e2e -- --test-threads=2 memory::`.

mod account;
mod attach;
mod budget;
mod children;
mod events;
mod exec;
mod fit;
mod fixed;
mod full;
mod go;
mod inject;
mod interface;
mod kill;
mod kinds;
mod lab;
mod memory;
mod metrics;
mod packaging;
mod plain;
mod process;
mod real;
mod remote;
mod remote_store;
mod resources;
mod rights;
mod set;
mod stress;
mod terminal;
mod thrashing;
mod tools;
mod top;
mod torture;
mod unmanaged;
mod watch;
