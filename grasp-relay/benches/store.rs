//! How fast the event stores are, on a real disk: `cargo bench -p grasp-relay --bench store`.
//!
//! An argument sets the number of events (default 100,000). With the features `nostr-sqlite` and `nostr-lmdb` those
//! databases run the same course and are set against ours.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "store/course.rs"]
mod course;
#[path = "store/events.rs"]
mod events;
#[path = "store/house.rs"]
mod house;
#[path = "store/processor.rs"]
mod processor;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use course::{ROWS, Result};
use events::World;

fn main() {
    let wanted = std::env::args().skip(1).find_map(|arg| arg.parse().ok());
    let count = wanted.unwrap_or(100_000);
    // Not the system's place for temporary files, which may be memory.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir = dir.path();

    println!("writing and signing {count} events");
    let world = World::generate(count);
    println!("{}: fdatasync takes {:?}", dir.display(), fdatasync(dir));

    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let mut results = Vec::new();
    for (name, open) in house::ALL {
        let place = dir.join(name);
        fs::create_dir_all(&place).unwrap();
        results.push((*name, runtime.block_on(course::run(*open, &place, &world))));
        print(&results);
    }
}

/// What the disk itself asks for durability: the median of many small writes.
fn fdatasync(dir: &Path) -> Duration {
    use std::io::Write;
    let mut file = fs::File::create(dir.join("sync")).unwrap();
    let mut times: Vec<_> = (0..101)
        .map(|_| {
            let start = Instant::now();
            file.write_all(&[7; 4096]).unwrap();
            file.sync_data().unwrap();
            start.elapsed()
        })
        .collect();
    times.sort();
    times[50]
}

fn print(results: &[(&str, Result)]) {
    print!("\n{:<44}", "");
    for (name, _) in results {
        print!("{name:>22}");
    }
    println!("{:>18}", "wanted");
    for (row, (title, wanted)) in ROWS.iter().enumerate() {
        print!("{title:<44}");
        let ours = results[0].1[row];
        for (place, (_, figures)) in results.iter().enumerate() {
            let ratio =
                if place == 0 { String::new() } else { format!(" ({:.2}x)", figures[row] / ours) };
            print!("{:>22}", format!("{}{ratio}", short(figures[row])));
        }
        println!("{wanted:>18}");
    }
}

fn short(figure: f64) -> String {
    if figure >= 100.0 { format!("{figure:.0}") } else { format!("{figure:.2}") }
}
