//! Measures the cost to seal a page and to open it again: `cargo run --release -p ebb-swap
//! --example seal`.

use std::time::{Duration, Instant};

#[path = "../src/crypt.rs"]
mod crypt;

mod page {
    pub(crate) use ebb_swap::Page;
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn main() {
    let key = crypt::Key::new().expect("a key");
    let mut page = [7; 4096];
    let (mut seals, mut opens) = (Vec::new(), Vec::new());
    for turn in 0..20_000 {
        let began = Instant::now();
        let seal = key.seal(0, turn, &mut page);
        let between = Instant::now();
        key.open(0, turn, &seal, &mut page).expect("its own");
        opens.push(between.elapsed());
        seals.push(between - began);
    }
    println!("a page: sealed in {:?}, opened in {:?}", median(seals), median(opens));
}
